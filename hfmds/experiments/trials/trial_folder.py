"""The folder of one trial: its description, its progress and its result.

    config.json             the trial, for people
    checkpoint.safetensors  while it runs: the last saved round; after a failure, the last good one
    result.json             at the end: every round; the same bytes after any kill
    final.safetensors       at the end: the model and the last pool
    made.json               at the end: versions and time
    cost.json               for some reports: the cost for a device

A file is complete or absent: it is written under another name and then moved.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hfmds.domain.learning import Checkpoint, LeakageSummary, Pool, Weights
from hfmds.errors import ConfigurationError
from hfmds.experiments.trials.trial import Trial

CONFIG, RESULT, MADE, COST = "config.json", "result.json", "made.json", "cost.json"
CHECKPOINT, FINAL = "checkpoint.safetensors", "final.safetensors"

_WEIGHTS, _SERVER, _FLEET = "weights/", "server/", "fleet/"

Arrays = dict[str, NDArray[np.generic]]
Record = dict[str, Any]
"""A JSON object."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The state of a running trial after a round."""

    checkpoint: Checkpoint
    fleet: Arrays  # `LocalFleet.state`
    rounds: list[Record]
    seconds: float  # of computing so far


class TrialFolder:
    """The files of one trial."""

    def __init__(self, results: Path, trial_id: str) -> None:
        self.path = results / trial_id

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process; wait while another process has it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path):
            yield

    def describe(self, trial: Trial) -> None:
        """Write the description of the trial."""
        write_json(self.path / CONFIG, trial.record())

    # --- the end --------------------------------------------------------------------------------

    def result(self) -> Record | None:
        """Return the result of the trial; None before its end."""
        return self._read_json(RESULT)

    def made(self) -> Record | None:
        """Return the versions and the time of the result."""
        return self._read_json(MADE)

    def cost(self) -> Record | None:
        """Return the cost for a device; None if it was not counted."""
        return self._read_json(COST)

    def keep_cost(self, cost: Record) -> None:
        """Store the cost for a device."""
        write_json(self.path / COST, cost)

    def finish(self, result: Record, made: Record, last: Saved) -> None:
        """Write the result and reduce the checkpoint to the model and the last pool."""
        if result["status"] == "done":
            # Without the memory of devices and server: it may be many models, and no round follows.
            pool = {key: value for key, value in last.fleet.items() if key.startswith("pool/")}
            point = replace(last.checkpoint, server_state={})
            self._write_arrays(FINAL, Saved(point, pool, rounds=[], seconds=0.0))
        else:  # the last good state, for inspection
            self.save(last)
        write_json(self.path / MADE, made)
        write_json(self.path / RESULT, result)  # last: its presence means that all files are there
        if result["status"] == "done":
            (self.path / CHECKPOINT).unlink(missing_ok=True)

    def final(self) -> Saved | None:
        """Return the final model and pool."""
        return self._read_arrays(FINAL)

    # --- while it runs --------------------------------------------------------------------------

    def save(self, saved: Saved) -> None:
        """Replace the checkpoint."""
        self._write_arrays(CHECKPOINT, saved)

    def saved(self) -> Saved | None:
        """Return the last checkpoint; None: start at the beginning."""
        return self._read_arrays(CHECKPOINT)

    # --- files ----------------------------------------------------------------------------------

    def _write_arrays(self, name: str, saved: Saved) -> None:
        point = saved.checkpoint
        arrays: Arrays = {_WEIGHTS + key: value for key, value in point.weights.items()}
        arrays |= {_SERVER + key: value for key, value in point.server_state.items()}
        arrays |= {_FLEET + key: value for key, value in saved.fleet.items()}
        state = {
            "round_number": point.round_number,
            "pool": asdict(point.pool) if point.pool else None,
            "rounds": saved.rounds,
            "seconds": saved.seconds,
        }
        draft = _draft(self.path / name)
        save_file(
            # ascontiguousarray would give a single number a dimension
            {key: np.asarray(value, order="C") for key, value in arrays.items()},
            draft,
            {"state": json.dumps(state)},
        )
        _move(draft, self.path / name)

    def _read_arrays(self, name: str) -> Saved | None:
        try:
            with safe_open(self.path / name, framework="np") as file:
                state = json.loads(file.metadata()["state"])
                arrays: Arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (FileNotFoundError, SafetensorError):  # a broken file counts as absent
            return None
        checkpoint = Checkpoint(
            state["round_number"],
            _weights(_under(_WEIGHTS, arrays)),
            _pool(state["pool"]),
            _weights(_under(_SERVER, arrays)),
        )
        fleet = _under(_FLEET, arrays)
        return Saved(checkpoint, fleet, state["rounds"], state["seconds"])

    def _read_json(self, name: str) -> Record | None:
        try:
            return read_json(self.path / name)
        except ValueError as error:
            raise ConfigurationError(
                f"{self.path / name} is damaged; delete the folder {self.path} and run the "
                "experiment again: that trial is then repeated"
            ) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; wait while another process has it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # the kernel frees it when the process ends
        yield
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Record | None:
    """Return the value of a file, None without a file. ValueError: the file is damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(record, dict):
        raise ValueError("no JSON object")
    return record


def write_json(path: Path, value: Record) -> None:
    """Replace the content of a file."""
    draft = _draft(path)
    draft.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    _move(draft, path)


def _under(prefix: str, arrays: Arrays) -> Arrays:
    return {
        key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)
    }


def _weights(arrays: Arrays) -> Weights:
    return {key: value.astype(np.float32, copy=False) for key, value in arrays.items()}


def _draft(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _move(draft: Path, path: Path) -> None:
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)


def _pool(record: Mapping[str, Any] | None) -> Pool | None:
    if record is None:
        return None
    # Traffic is zero in a simulated fleet.
    return Pool(record["snapshot_id"], record["samples"], LeakageSummary(**record["leakage"]))
