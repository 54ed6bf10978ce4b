"""Makes plans in a process of their own, and finds those that were made before.

An export takes some twenty seconds of a processor and 1 GB, and torch's tracing holds the
interpreter: nothing that a server should do in its own process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path

from hfmds.domain.recipe import OUR_ARCHITECTURES
from hfmds.errors import InvalidInput, Unavailable
from hfmds.plans.format import FORMAT_VERSION, OPSET, PlanSpec

_THIS_PROCESS = secrets.token_hex(8)
_PLAN_NAME = re.compile("[0-9a-f]{64}")
_BEING_MADE = "hfmds-plan-"  # how a folder's name begins in which one is
_ABANDONED_AFTER_SECONDS = 24 * 3600.0


@lru_cache(maxsize=256)
def plan_key(spec: PlanSpec) -> str:
    """Names all that a plan is made from, in 64 hex digits: with the same key it is the same plan.

    A network that somebody else brought may change under its name: its plans last for a process.
    """
    made_from = {
        "format": FORMAT_VERSION,
        "opset": OPSET,
        "spec": asdict(spec),
        "network": "ours" if spec.model.architecture in OUR_ARCHITECTURES else _THIS_PROCESS,
        "code": _code(),
        "versions": [version(package) for package in ("torch", "onnx", "onnxscript")],
    }
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


@cache
def _code() -> str:
    """The digest of all our code that plans are made by, so that none outlives a change of it."""
    package = Path(__file__).parents[1]
    sha256 = hashlib.sha256()
    for folder in ("algorithm", "domain", "plans"):
        for path in sorted((package / folder).rglob("*.py")):
            sha256.update(f"{path.relative_to(package)}\n".encode())
            sha256.update(path.read_bytes())
    return sha256.hexdigest()


class PlanLibrary:
    """Plans by key in a folder, which several processes may share; without one nothing is kept."""

    def __init__(self, folder: Path | None = None, max_bytes: int = 256 * 1024 * 1024) -> None:
        """Above `max_bytes` the least recently used ones leave the folder."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # one export at a time is enough for a machine
        self._running: subprocess.Popen[str] | None = None
        self._closed = False

    def plan(self, spec: PlanSpec) -> bytes:
        """Give the plan as a file's bytes. If there is none yet, making it takes long.

        InvalidInput: the network cannot be made a plan of. Unavailable: this was closed meanwhile.
        """
        with self._lock:
            kept = self._folder / plan_key(spec) if self._folder else None
            if kept and (found := _used(kept)):
                return found
            with tempfile.TemporaryDirectory(
                prefix=_BEING_MADE, dir=_made(self._folder) if self._folder else None
            ) as folder:
                made = Path(folder) / "plan"
                self._make(spec, made)
                data = made.read_bytes()
                if kept:
                    made.replace(kept)
            if self._folder:
                _make_room(self._folder, self._max_bytes)
            return data

    def close(self) -> None:
        """End an export that is under way, and begin no other."""
        self._closed = True
        running = self._running
        if running:
            running.kill()

    def _make(self, spec: PlanSpec, path: Path) -> None:
        if self._closed:
            raise Unavailable("the process is stopping; no plan is made any more")
        command = [sys.executable, "-m", "hfmds.plans.making", str(path)]
        with subprocess.Popen(  # noqa: S603  (our own program)
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            self._running = process
            if self._closed:
                process.kill()
            _, told = process.communicate(json.dumps(asdict(spec)))
            self._running = None
        if self._closed:
            raise Unavailable("the process is stopping; the plan is made when it is back")
        if process.returncode:
            reason = told.strip().splitlines()[-1] if told.strip() else "it was killed"
            raise InvalidInput(f"the plan of {spec.model.architecture!r} was not made: {reason}")


def _used(path: Path) -> bytes | None:
    """A plan that is wanted now, if it is here."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    with suppress(FileNotFoundError, PermissionError):  # another process's, which may make room
        os.utime(path)
    return data


def _make_room(folder: Path, max_bytes: int) -> None:
    """Drop what was not used for longest, and what an export that was killed has left."""
    files: dict[Path, os.stat_result] = {}
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process makes room, too
            files[path] = path.stat()
    abandoned_before, total_bytes = time.time() - _ABANDONED_AFTER_SECONDS, 0
    for path in sorted(files, key=lambda path: files[path].st_mtime_ns, reverse=True):
        if _PLAN_NAME.fullmatch(path.name):
            total_bytes += files[path].st_size
            if total_bytes > max_bytes and total_bytes > files[path].st_size:  # but for the newest
                path.unlink(missing_ok=True)
        elif path.name.startswith(_BEING_MADE) and files[path].st_mtime < abandoned_before:
            shutil.rmtree(path, ignore_errors=True)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
