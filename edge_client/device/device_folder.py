"""The state folder of a device: its id, its memory, a result that is not submitted yet.

Each file is written completely or not at all, so a device killed at any instant goes on from here.
Nothing in this folder leaves the device. Without the folder, the device is a new one.

    device-id                       the id, made at the first start
    result.json                     the last finished task's report; its bytes are in the cache
    traffic.json                    the bytes moved today, if there is a limit
    runs/<run uid>/<kind>-<round>   the memory after that round's task of this kind: prototypes, the
                                    last local model; as safetensors
    lock                            held while a process uses the folder
"""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from hfmds.algorithm.device_memory import round_before
from hfmds.algorithm.local_work import Memory
from hfmds.domain.devices import require_id
from hfmds.domain.digest import Digest
from hfmds.domain.learning import Evaluation, LeakageSummary, Traffic
from hfmds.domain.methods import TaskKind
from hfmds.domain.tasks import (
    DeviceReport,
    EvaluationReport,
    SynthesisReport,
    UpdateReport,
)
from hfmds.errors import ConfigurationError, InvalidInput
from hfmds.storage.files import (
    FolderLock,
    full_disk_is_unavailable,
    make_folder_durably,
    write_whole,
)
from hfmds.wire.tensors import StoredWeights, encode_weights

log = logging.getLogger(__name__)

Report: TypeAlias = UpdateReport | SynthesisReport | EvaluationReport

_KEEP_ROUNDS = 3
_KEEP_RUNS = 64
_KEEP_RUN_SECONDS = 30 * 24 * 3600  # a run may be paused for weeks, and then go on


class DeviceFolder:
    """The state folder of one device, locked against other processes."""

    def __init__(
        self, folder: Path, device_id: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        """Open or make the folder of this device; an empty id takes the folder's device.

        `clock` is compared with the times of files.
        """
        self._folder = folder
        self._clock = clock
        self._lock = FolderLock(folder, setting="HFMDS_STATE_DIR")
        try:
            self.device_id = self._identify(device_id)
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.close()

    # --- memory ---------------------------------------------------------------------------------

    def memory(self, run_uid: str, kind: TaskKind, round_number: int) -> Memory:
        """Return the memory after the last task of this kind before the round.

        So a repeated task starts from the same memory. A damaged file counts as no memory: that
        costs a little accuracy, while an error would cost the task.
        """
        before = round_before(self._rounds(run_uid, kind), round_number)
        if before is None:
            return {}
        path = self._memory_path(run_uid, kind, before)
        try:
            stored = StoredWeights(path, f"the memory in {path}")
            return {name: stored[name] for name in stored}
        except (InvalidInput, OSError) as error:
            log.warning("the task begins without the memory of the last one: %s", error)
            return {}

    def save_memory(self, run_uid: str, kind: TaskKind, round_number: int, memory: Memory) -> None:
        """Store the memory after a task, and delete old ones."""
        if not memory:
            return
        path = self._memory_path(run_uid, kind, round_number)
        with full_disk_is_unavailable(self._folder):
            make_folder_durably(path.parent)
        write_whole(path, encode_weights(memory))
        rounds = self._rounds(run_uid, kind)
        # A coordinator restored from a backup undoes later rounds.
        kept = sorted(t for t in rounds if t <= round_number)[-_KEEP_ROUNDS:]
        for other in set(rounds).difference(kept):
            self._memory_path(run_uid, kind, other).unlink(missing_ok=True)
        self._forget_old_runs(but=path.parent)

    def _rounds(self, run_uid: str, kind: TaskKind) -> list[int]:
        files = self._run_folder(run_uid).glob(f"{kind}-*")
        rounds = (file.name.removeprefix(f"{kind}-") for file in files)
        return [
            int(number) for number in rounds if number.isdecimal()
        ]  # other files are copies by hand

    def _memory_path(self, run_uid: str, kind: TaskKind, round_number: int) -> Path:
        return self._run_folder(run_uid) / f"{kind}-{round_number}"

    def _run_folder(self, run_uid: str) -> Path:
        return self._folder / "runs" / require_id(run_uid, "run_uid")  # it becomes a path: no "../"

    def _forget_old_runs(self, but: Path) -> None:
        """Delete the memory of old runs, but never of the run at work."""
        runs = (run for run in (self._folder / "runs").iterdir() if run != but)
        touched = {run: run.stat().st_mtime for run in runs}
        newest_first = sorted(touched, key=touched.__getitem__, reverse=True)
        too_old = self._clock() - _KEEP_RUN_SECONDS
        for place, run in enumerate(newest_first):
            if place + 1 >= _KEEP_RUNS or touched[run] < too_old:
                log.info("forgetting run %s: no work for it since long ago", run.name)
                shutil.rmtree(run)

    # --- a finished task ------------------------------------------------------------------------

    def result(self, task_id: str) -> Report | None:
        """Return the report of this task, if it was finished before; its bytes may be gone."""
        try:
            stored = json.loads((self._folder / "result.json").read_bytes())
            return _report_from(stored["report"]) if stored["task_id"] == task_id else None
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError, InvalidInput, OSError) as error:
            # Damaged, or of another version: the device does the task again.
            log.warning("%s is not readable, ignored: %s", self._folder / "result.json", error)
            return None

    def save_result(self, task_id: str, report: Report) -> None:
        """Store a finished task's report; it replaces the last one."""
        content = {"task_id": task_id, "report": dataclasses.asdict(report)}
        write_whole(self._folder / "result.json", json.dumps(content).encode())

    # --- opening --------------------------------------------------------------------------------

    def _identify(self, wanted: str) -> str:
        path = _id_path(self._folder)
        kept = kept_device_id(self._folder)
        if kept and wanted and kept != wanted:
            raise ConfigurationError(
                f"the state folder {self._folder} belongs to device {kept!r}, not to "
                f"HFMDS_DEVICE_ID {wanted!r}; set HFMDS_STATE_DIR to a folder of this device's own"
            )
        device_id = kept or wanted or f"device-{uuid.uuid4().hex[:12]}"
        if not kept:
            write_whole(path, f"{device_id}\n".encode())
        return device_id


def kept_device_id(folder: Path) -> str:
    """Return the id of the device that a state folder belongs to; empty: none yet."""
    path = _id_path(folder)
    try:
        kept = path.read_text().strip()
        return require_id(kept, "device-id") if kept else ""
    except FileNotFoundError:
        return ""
    except (InvalidInput, UnicodeDecodeError, OSError) as error:
        raise ConfigurationError(
            f"{path} does not say which device this is ({error}); write the device's id into it, "
            "as the coordinator knows it, or delete the folder, which makes this a new device"
        ) from error


def _id_path(folder: Path) -> Path:
    return folder / "device-id"


def _report_from(fields: dict[str, Any]) -> Report:
    fields["traffic"] = Traffic(**fields["traffic"])
    if fields.get("device"):
        fields["device"] = DeviceReport(**fields["device"])
    if "update" in fields:
        return UpdateReport(**{**fields, "update": Digest(**fields["update"])})
    if "evaluation" in fields:
        return EvaluationReport(**{**fields, "evaluation": Evaluation(**fields["evaluation"])})
    fields["leakage"] = LeakageSummary(**fields["leakage"])
    return SynthesisReport(**{**fields, "batch": Digest(**fields["batch"])})
