"""Where every random number of a run comes from: one seed, and names for what it is used for.

A stream is named by what it decides ("train", round 7, device "phone-3"), never by when it is
drawn, so a device that retries, or a coordinator that resumes, repeats the same draw. Only numpy
here: every engine, with or without torch, must see the same numbers.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

from hfmds.domain.methods import TaskKind


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed (it fits a protobuf int64) for the stream these names stand for."""
    # JSON keeps ("a", "b") apart from ("ab",), and 1 apart from "1".
    path = json.dumps([seed, *names], separators=(",", ":")).encode()
    return int.from_bytes(hashlib.sha256(path).digest()[:8]) >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """The stream these names stand for. PCG64 by name: numpy's default may change one day."""
    return np.random.Generator(np.random.PCG64(derive_seed(seed, *names)))


def task_seed(run_seed: int, phase: TaskKind, round_number: int, device_id: str) -> int:
    """The seed of one device's task; whoever hands out the task derives it here."""
    return derive_seed(run_seed, phase, round_number, device_id)
