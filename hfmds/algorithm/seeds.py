"""Derives every random number of a run from one seed and a name. Only numpy.

A stream is named by what it decides ("train", round 7, device "phone-3"), never by when it is
drawn. So a device that retries, and a coordinator that resumes, repeat the same draw. Engines with
and without torch see the same numbers.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

from hfmds.domain.methods import TaskKind


def derive_seed(seed: int, *names: str | int) -> int:
    """Derive the 63-bit seed of a stream from its names. It fits a protobuf int64."""
    # JSON keeps ("a", "b") apart from ("ab",), and 1 apart from "1".
    path = json.dumps([seed, *names], separators=(",", ":")).encode()
    return int.from_bytes(hashlib.sha256(path).digest()[:8]) >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """Open the stream of these names. PCG64 is explicit because numpy's default may change."""
    return np.random.Generator(np.random.PCG64(derive_seed(seed, *names)))


def task_seed(run_seed: int, phase: TaskKind, round_number: int, device_id: str) -> int:
    """Derive the seed of one device's task. Simulation and coordinator both call this."""
    return derive_seed(run_seed, phase, round_number, device_id)
