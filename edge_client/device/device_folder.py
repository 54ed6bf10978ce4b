"""What a device keeps between its starts: who it is, its memory, a result not yet handed in.

Everything is written whole or not at all, so that a device killed at any instant goes on from here.
Nothing in this folder ever leaves the device; deleting it makes the device a new one.

    device-id                       the id, made at the first start
    result.json                     the last finished task's report; its bytes are in the cache
    traffic.json                    what was moved today, where there is a limit
    runs/<run uid>/<kind>-<round>   what that round's task of this kind (train, synthesise) left for
                                    the next: prototypes, the last local model; as safetensors
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
    """The state folder of one device, locked against a second process."""

    def __init__(
        self, folder: Path, device_id: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        """Open or make the folder, for the device of this id; empty: whichever it belongs to.

        `clock` says the time that the files' times are compared with.
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
        """Let another process have the folder."""
        self._lock.close()

    # --- memory ---------------------------------------------------------------------------------

    def memory(self, run_uid: str, kind: TaskKind, round_number: int) -> Memory:
        """That of the last task of this kind before the round: a repeated one starts from it.

        A damaged one counts as none. That costs a little accuracy; an error would cost the run, and
        would tell the coordinator a path on this device.
        """
        before = round_before(self._rounds(run_uid, kind), round_number)
        if before is None:
            return {}
        path = self._memory_path(run_uid, kind, before)
        try:
            stored = StoredWeights(path, f"the memory in {path}")
            return {name: stored[name] for name in stored}
        except (InvalidInput, OSError) as error:
            log.warning("the task begins without what the last one left: %s", error)
            return {}

    def save_memory(self, run_uid: str, kind: TaskKind, round_number: int, memory: Memory) -> None:
        """Keep what a task left for the next of its kind, if anything, and forget others."""
        if not memory:
            return
        path = self._memory_path(run_uid, kind, round_number)
        with full_disk_is_unavailable(self._folder):
            make_folder_durably(path.parent)
        write_whole(path, encode_weights(memory))
        rounds = self._rounds(run_uid, kind)
        # Later rounds than this one were undone, by a coordinator that came back from a backup.
        kept = sorted(t for t in rounds if t <= round_number)[-_KEEP_ROUNDS:]
        for other in set(rounds).difference(kept):
            self._memory_path(run_uid, kind, other).unlink(missing_ok=True)
        self._forget_old_runs(but=path.parent)

    def _rounds(self, run_uid: str, kind: TaskKind) -> list[int]:
        files = self._run_folder(run_uid).glob(f"{kind}-*")
        rounds = (file.name.removeprefix(f"{kind}-") for file in files)
        return [int(number) for number in rounds if number.isdecimal()]  # else somebody's copy

    def _memory_path(self, run_uid: str, kind: TaskKind, round_number: int) -> Path:
        return self._run_folder(run_uid) / f"{kind}-{round_number}"

    def _run_folder(self, run_uid: str) -> Path:
        return self._folder / "runs" / require_id(run_uid, "run_uid")  # it becomes a path: no "../"

    def _forget_old_runs(self, but: Path) -> None:
        """Forget runs long over; never the one at work, whatever the clock says."""
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
        """The report of this task, if it was finished before; its bytes may be gone."""
        try:
            stored = json.loads((self._folder / "result.json").read_bytes())
            return _report_from(stored["report"]) if stored["task_id"] == task_id else None
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError, InvalidInput, OSError) as error:
            # Damaged, or of another version: the work is done again.
            log.warning("%s is not readable, ignored: %s", self._folder / "result.json", error)
            return None

    def save_result(self, task_id: str, report: Report) -> None:
        """Keep a finished task's report until the next task's: there is one task at a time."""
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
    """The id of the device that a state folder belongs to; empty: none yet."""
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
