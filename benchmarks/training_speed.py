"""How fast is simulated local training, against a plain loop and against one process per core?

    .venv/bin/python benchmarks/training_speed.py [--batch-sizes 1 10 32 64 256] [--passes 15]

Trains devices with the paper's network in four ways: a plain PyTorch loop (torch.optim.SGD, default
layout, torch's own number of threads), the same loop in one process per core, ours in one process,
and ours in one process per core. A process per core computes with one thread. Prints a Markdown
table of samples per second, as ratios to the plain loop of the same row, and what share ours
reaches of the matrix-multiply peak, measured in the same run.

All ways take turns, pass by pass, and the fastest pass of each counts: other programs on the
machine only ever slow a pass. A busy machine still flatters us, because the threads of the plain
loop wait for each other; so a busy machine is reported.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch.utils.flop_counter import FlopCounterMode

from hfmds.algorithm.engine import LocalWork
from hfmds.algorithm.methods.registry import method_of
from hfmds.algorithm.methods.settings import Hfmds
from hfmds.algorithm.models import build_model, initial_weights, model_with
from hfmds.algorithm.pixels import normalise
from hfmds.algorithm.recipes import ModelSpec, Normalisation, Recipe, TrainingRecipe
from hfmds.algorithm.types import LabelledImages

MODEL = ModelSpec()
NORMALISATION = Normalisation((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
PEAK_SIDE = 1024  # of the square matrices whose product is the peak: large, yet in cache
QUIET_LOAD = 0.3  # processes that run besides us, above which ratios are not to be trusted


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    batch_size: int
    pooled: bool = False  # as many synthetic samples again in each batch

    @property
    def name(self) -> str:
        return f"{self.batch_size} + {self.batch_size}" if self.pooled else str(self.batch_size)

    @property
    def images(self) -> int:
        """In a device's shard: what the paper's devices hold, or two batches."""
        return max(100, 2 * self.batch_size)

    @property
    def samples(self) -> int:
        """What one device trains on in one pass."""
        return self.images * (2 if self.pooled else 1)

    def work(self) -> LocalWork:
        recipe = Recipe(
            MODEL,
            NORMALISATION,
            rounds=1,
            training=TrainingRecipe(batch_size=self.batch_size),
            method=Hfmds(),
        )
        random = np.random.default_rng(0)

        def images(count: int) -> LabelledImages:
            pixels = random.integers(0, 256, (count, *MODEL.image_shape), dtype=np.uint8)
            return LabelledImages(pixels, random.integers(0, MODEL.classes, count))

        pool = images(self.images) if self.pooled else None
        weights = initial_weights(MODEL, seed=0)
        return LocalWork(recipe, 1, weights, images(self.images), seed=0, pool=pool)


def ours(work: LocalWork) -> None:
    """One device's local training as the simulation does it."""
    method_of(work.recipe).train(work)


def plain(work: LocalWork) -> None:
    """One device's local training as one would write it down."""
    settings, shard, pool = work.recipe.training, work.shard, work.pool
    model = model_with(MODEL, work.weights)
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    images = torch.from_numpy(normalise(shard.pixels, NORMALISATION))
    labels = torch.from_numpy(shard.labels)
    if pool:
        pool_images = torch.from_numpy(normalise(pool.pixels, NORMALISATION))
        pool_labels = torch.from_numpy(pool.labels)
    epoch_loss = 0.0
    for rows in torch.randperm(len(shard)).split(settings.batch_size):
        if pool:
            drawn = torch.randperm(len(pool))[: len(rows)]
            logits = model(torch.cat([images[rows], pool_images[drawn]]))
            on_real = F.cross_entropy(logits[: len(rows)], labels[rows])
            on_pool = F.cross_entropy(logits[len(rows) :], pool_labels[drawn])
            loss = settings.alpha * on_real + (1 - settings.alpha) * on_pool
        else:
            loss = F.cross_entropy(model(images[rows]), labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        epoch_loss += loss.item()


def matrix_multiply(_: LocalWork) -> None:
    """The most arithmetic a core does: nothing but one large product."""
    a = torch.ones(PEAK_SIDE, PEAK_SIDE)
    for _repeat in range(10):
        torch.mm(a, a)


MATRIX_MULTIPLY_FLOPS = 10 * 2 * PEAK_SIDE**3
TASKS: dict[str, Callable[[LocalWork], None]] = {
    task.__name__: task for task in (ours, plain, matrix_multiply)
}


@dataclass(frozen=True, slots=True)
class Way:
    """What is timed, and in how many processes at once."""

    task: str
    per_core: bool
    name: str


PLAIN_LOOP = Way("plain", False, "plain loop")
OURS_PER_CORE = Way("ours", True, "ours, one process per core")
PEAK = Way("matrix_multiply", True, "matrix multiply")
WAYS = (
    PLAIN_LOOP,
    Way("plain", True, "plain loop, one process per core"),
    Way("ours", False, "ours, one process"),
    OURS_PER_CORE,
)


class Crew:
    """Processes that all do the same task at the same time, again and again."""

    def __init__(self, processes: int, threads: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._lines: list[Connection] = []
        for _ in range(processes):
            line, far_end = context.Pipe()
            context.Process(target=_serve, args=(far_end, threads), daemon=True).start()
            self._lines.append(line)

    def __len__(self) -> int:
        return len(self._lines)

    def seconds(self, task: str, case: Case) -> float:
        """Until the last process has done the task once."""
        start = time.perf_counter()
        for line in self._lines:
            line.send((task, case))
        for line in self._lines:
            line.recv()
        return time.perf_counter() - start

    def dismiss(self) -> None:
        for line in self._lines:
            line.send(None)


def _serve(line: Connection, threads: int | None) -> None:
    if threads:
        torch.set_num_threads(threads)
    works: dict[Case, LocalWork] = {}
    while (job := line.recv()) is not None:
        task, case = job
        if case not in works:
            works[case] = case.work()
        TASKS[task](works[case])
        line.send(None)


@contextmanager
def crews(cores: int) -> Iterator[Callable[[Way], Crew]]:
    """Who works in which way: alone with torch's threads, alone with one, or one on each core."""
    threaded, single, one_per_core = Crew(1, None), Crew(1, 1), Crew(cores, 1)
    try:
        yield (
            lambda way: (
                one_per_core if way.per_core else threaded if way.task == "plain" else single
            )
        )
    finally:
        for crew in (threaded, single, one_per_core):
            crew.dismiss()


def flops_per_sample() -> int:
    """Of a forward and a backward through the network, by torch's counter."""
    counter = FlopCounterMode(display=False)
    with counter:
        build_model(MODEL)(torch.zeros(1, *MODEL.image_shape)).sum().backward()
    return int(counter.get_total_flops())


def measure(case: Case, passes: int, crew_of: Callable[[Way], Crew]) -> tuple[list[float], float]:
    """Samples per second of each of WAYS, and the peak in flops per second."""
    ways = (*WAYS, PEAK)
    best = dict.fromkeys(ways, float("inf"))
    for number in range(passes + 1):
        for way in ways:
            seconds = crew_of(way).seconds(way.task, case)
            if number:  # the first pass warms up
                best[way] = min(best[way], seconds)
    rates = [case.samples * len(crew_of(way)) / best[way] for way in WAYS]
    return rates, MATRIX_MULTIPLY_FLOPS * len(crew_of(PEAK)) / best[PEAK]


def table(cases: Sequence[Case], passes: int, cores: int) -> Iterator[str]:
    """The lines of the table, each when it is known."""
    flops = flops_per_sample()
    names = " | ".join(way.name for way in WAYS[1:])
    yield f"| batch | plain loop, samples/s | {names} | share of matrix-multiply peak |"
    yield "|---|" + "---|" * (len(WAYS) + 1)
    with crews(cores) as crew_of:
        for case in cases:
            rates, peak = measure(case, passes, crew_of)
            ratios = " | ".join(f"{rate / rates[0]:.2f}x" for rate in rates[1:])
            share = rates[WAYS.index(OURS_PER_CORE)] * flops / peak
            yield f"| {case.name} | {rates[0]:.0f} | {ratios} | {share:.0%} |"


def main() -> None:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 10, 32, 64, 256])
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if (load := os.getloadavg()[0]) > QUIET_LOAD:
        sys.stderr.write(
            f"other programs keep {load:.1f} processors busy: the ratios will be too high; "
            "measure again when the machine is idle\n"
        )
    cases = [Case(size) for size in options.batch_sizes] + [Case(10, pooled=True)]
    for line in table(cases, options.passes, options.cores):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
