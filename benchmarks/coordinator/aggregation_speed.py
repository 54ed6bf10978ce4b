"""How fast is averaging, and in how much memory?

    python -m benchmarks.coordinator.aggregation_speed [--updates 100] [--quick]

Updates of the paper's CNN (3.5 MB each) are files in the page cache, as after an upload. This
script times the server's step of FedAvg over `StoredWeights`, with its checks and its own threads.
The baseline is NumPy, which adds the same bytes file by file in one thread, in float64 and in
float32. `taskset -c 0` compares both in one thread.

Each way runs in its own process, in turns, and the fastest pass counts. Memory is the peak of
the process above its value before the pass, in models.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from benchmarks.shared.programs import (
    forget_peak,
    print_progress,
    print_result,
    usage,
    warn_if_busy,
)
from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.models.building import initial_weights
from hfmds.domain.learning import Traffic, Update, Weights
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe
from hfmds.wire.tensors import StoredWeights, encode_weights

MODEL = ModelSpec()
RECIPE = Recipe(MODEL, Normalisation((0.5,) * 3, (0.25,) * 3), rounds=1)
_FLOAT32_BYTES = 4


def ours(paths: Sequence[Path], weights: Weights) -> None:
    """Average as the server does."""
    updates = tuple(
        Update(path.name, StoredWeights(path, path.name), 100, 0.0, Traffic()) for path in paths
    )
    method_of(RECIPE).aggregate(1, weights, updates)


def numpy_sum(paths: Sequence[Path], weights: Weights, dtype: DTypeLike) -> None:
    """Add the same bytes with NumPy."""
    count = sum(array.size for array in weights.values())
    total = np.zeros(count, dtype)
    header_bytes = paths[0].stat().st_size - _FLOAT32_BYTES * count
    for path in paths:
        total += np.memmap(path, np.float32, "r", offset=header_bytes)


WAYS: dict[str, Callable[[Sequence[Path], Weights], None]] = {
    "ours": ours,
    "numpy, float64 sum": partial(numpy_sum, dtype=np.float64),
    "numpy, float32 sum": partial(numpy_sum, dtype=np.float32),
}


def _serve(line: Connection, way: str, paths: Sequence[Path]) -> None:
    weights = initial_weights(MODEL, seed=0)
    WAYS[way](paths[:2], weights)  # imports and allocators are warm
    while line.recv():
        gc.collect()
        pid = os.getpid()
        forget_peak(pid)
        before, started = usage(pid), time.perf_counter()
        WAYS[way](paths, weights)
        seconds = time.perf_counter() - started
        line.send((seconds, usage(pid).peak_rss_bytes - before.rss_bytes))


def write_updates(folder: Path, count: int) -> list[Path]:
    """Make updates that are close to each other and never equal."""
    random = np.random.default_rng(0)
    first = initial_weights(MODEL, seed=0)
    paths = [folder / f"device-{number:04}" for number in range(count)]
    for path in paths:
        path.write_bytes(
            encode_weights(
                {
                    name: array + 0.01 * random.standard_normal(array.shape, np.float32)
                    for name, array in first.items()
                }
            )
        )
    return paths


def main() -> None:
    """Measure all ways in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument(
        "--quick", action="store_true", help="run seconds, only to see that it works"
    )
    options = parser.parse_args()
    if options.quick:
        options.updates, options.passes = 10, 3
    warn_if_busy()
    context = multiprocessing.get_context("spawn")
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    peaks: dict[str, list[int]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="hfmds-benchmark-") as folder:
        paths = write_updates(Path(folder), options.updates)
        model_bytes = paths[0].stat().st_size
        lines = {}
        for way in WAYS:
            line, far_end = context.Pipe()
            context.Process(target=_serve, args=(far_end, way, paths), daemon=True).start()
            lines[way] = line
        for number in range(options.passes):
            for way, line in lines.items():
                line.send(True)
                taken, peak = line.recv()
                seconds[way].append(taken)
                peaks[way].append(peak)
            print_progress(f"pass {number + 1}/{options.passes}: ours {min(seconds['ours']):.3f} s")
        for line in lines.values():
            line.send(False)
    baseline = min(seconds["numpy, float64 sum"])
    print_result(
        f"| {options.updates} updates of {model_bytes / 1e6:.2f} MB | seconds | GB/s "
        "| against numpy, float64 sum | peak memory, models |"
    )
    print_result("|---|---|---|---|---|")
    for way in WAYS:
        best = min(seconds[way])
        print_result(
            f"| {way} | {best:.3f} | {options.updates * model_bytes / 1e9 / best:.2f} "
            f"| {best / baseline:.2f}x | {max(peaks[way]) / model_bytes:.1f} |"
        )


if __name__ == "__main__":
    main()
