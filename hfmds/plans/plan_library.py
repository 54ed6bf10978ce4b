"""Makes plans in a child process, and keeps them in a folder.

An export takes about twenty seconds of a processor and at least 1 GB of memory. Torch's tracing
holds the interpreter's lock, so a server must not do that in its own process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import signal
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
from hfmds.processes import Child, Supervisor

_THIS_PROCESS = secrets.token_hex(8)
_PLAN_NAME = re.compile("[0-9a-f]{64}")
_UNFINISHED = "hfmds-plan-"  # prefix of folders in which a plan is being made
_ABANDONED_AFTER_SECONDS = 24 * 3600.0


@lru_cache(maxsize=256)
def plan_key(spec: PlanSpec) -> str:
    """Hash everything that a plan is made from, as 64 hex digits. Equal keys mean equal plans.

    A network that a user registered may change under its name. Its key holds for this process only.
    """
    inputs = {
        "format": FORMAT_VERSION,
        "opset": OPSET,
        "spec": asdict(spec),
        "network": "ours" if spec.model.architecture in OUR_ARCHITECTURES else _THIS_PROCESS,
        "code": _code(),
        "versions": [version(package) for package in ("torch", "onnx", "onnxscript")],
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


@cache
def _code() -> str:
    """Hash all our code that makes plans, so that no plan outlives a change of it."""
    package = Path(__file__).parents[1]
    sha256 = hashlib.sha256()
    for folder in ("algorithm", "domain", "plans"):
        for path in sorted((package / folder).rglob("*.py")):
            sha256.update(f"{path.relative_to(package)}\n".encode())
            sha256.update(path.read_bytes())
    return sha256.hexdigest()


class PlanLibrary:
    """Plans by key in a folder that several processes may share. Without a folder none is kept."""

    def __init__(self, folder: Path | None = None, max_bytes: int = 256 * 1024 * 1024) -> None:
        """Above `max_bytes`, the least recently used plans leave the folder."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # one export at a time: it takes a processor and gigabytes
        self._running: Child | None = None
        self._closed = False

    def plan(self, spec: PlanSpec) -> bytes:
        """Give the plan as a file's bytes. If there is none yet, making it takes long.

        Raises InvalidInput: the network cannot have a plan. Raises Unavailable: `close` was called.
        """
        with self._lock:
            path = self._folder / plan_key(spec) if self._folder else None
            if path and (data := _read_and_touch(path)):
                return data
            with tempfile.TemporaryDirectory(
                prefix=_UNFINISHED, dir=_existing(self._folder) if self._folder else None
            ) as folder:
                unfinished = Path(folder) / "plan"
                self._make(spec, unfinished)
                data = unfinished.read_bytes()
                if path:
                    unfinished.replace(path)
            if self._folder:
                _make_room(self._folder, self._max_bytes)
            return data

    def close(self) -> None:
        """Kill a running export, and start no other."""
        self._closed = True
        running = self._running
        if running:
            running.signal_group(signal.SIGKILL)

    def _make(self, spec: PlanSpec, path: Path) -> None:
        if self._closed:
            raise Unavailable("the process is stopping; ask again when it is back")
        # -u: the last line of the output is then the error.
        command = [sys.executable, "-u", "-m", "hfmds.plans.making"]
        with Supervisor(path.parent) as supervisor:
            maker = supervisor.start(
                "maker", [*command, str(path), json.dumps(asdict(spec))], os.environ
            )
            self._running = maker
            if self._closed:
                maker.signal_group(signal.SIGKILL)
            exit_code = maker.wait()
            self._running = None
        if self._closed:
            raise Unavailable("the process is stopping; ask again when it is back")
        if exit_code:
            reason = maker.last_output(lines=1) if exit_code > 0 else maker.describe_end()
            raise InvalidInput(f"the plan of {spec.model.architecture!r} was not made: {reason}")


def _read_and_touch(path: Path) -> bytes | None:
    """Read a plan and mark it as used now; None if it is not there."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    with suppress(FileNotFoundError, PermissionError):  # another process may own or delete it
        os.utime(path)
    return data


def _make_room(folder: Path, max_bytes: int) -> None:
    """Delete the least recently used plans, and what killed exports left behind."""
    files: dict[Path, os.stat_result] = {}
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process may delete it first
            files[path] = path.stat()
    abandoned_before, total_bytes = time.time() - _ABANDONED_AFTER_SECONDS, 0
    for path in sorted(files, key=lambda path: files[path].st_mtime_ns, reverse=True):
        if _PLAN_NAME.fullmatch(path.name):
            total_bytes += files[path].st_size
            if (
                total_bytes > max_bytes and total_bytes > files[path].st_size
            ):  # the newest one stays
                path.unlink(missing_ok=True)
        elif path.name.startswith(_UNFINISHED) and files[path].st_mtime < abandoned_before:
            shutil.rmtree(path, ignore_errors=True)


def _existing(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
