"""How fast is simulated training, against a plain loop and against one process per core?

    python -m benchmarks.simulation.training_speed [--passes 15] [--rows 1 9]

A round of devices trains the paper's network in five ways: in a plain PyTorch loop over devices
(torch.optim.SGD, default layout, torch's own number of threads); in the same loop in one process
for each core; all devices at once with torch.func, in one process for each core; with ours in one
process; and with ours on all cores (`ProcessWorkers`, hand-over included). The table has samples
per second as ratios to the plain loop, and the share of the matrix-multiply peak of the same run.

All ways take turns, and the fastest pass of each counts. A busy machine still favours ours, because
threads of the plain loop wait for each other; the script warns of a busy machine.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.utils.flop_counter import FlopCounterMode

from hfmds.algorithm.local_work import LocalWork
from hfmds.algorithm.models.building import build_model, initial_weights, model_with
from hfmds.algorithm.pixels import normalise
from hfmds.algorithm.simulation.local_fleet import InProcess, Workers
from hfmds.algorithm.simulation.process_workers import ProcessWorkers
from hfmds.domain.learning import LabelledImages
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe, TrainingRecipe

MODEL = ModelSpec()
NORMALISATION = Normalisation((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
DEVICES = 8
PEAK_SIDE = 1024  # of the square matrices whose product is the peak: large, yet in cache
QUIET_LOAD = 0.3  # processes that run besides us, above which ratios are not to be trusted


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    batch_size: int
    images: int = 100  # of each device
    pooled: bool = False  # as many synthetic samples again in each batch

    @property
    def name(self) -> str:
        batch = f"{self.batch_size} + {self.batch_size}" if self.pooled else str(self.batch_size)
        return f"{batch} | {self.images}"

    @property
    def samples(self) -> int:
        """Return the number of samples of one pass."""
        return DEVICES * self.images * (2 if self.pooled else 1)

    def works(self) -> list[LocalWork]:
        """Make one task for each device."""
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

        pool = images(100) if self.pooled else None
        first = LocalWork(
            recipe, 1, initial_weights(MODEL, seed=0), images(self.images), 0, pool=pool
        )
        return [replace(first, shard=images(self.images), seed=k) for k in range(DEVICES)]


CASES = (
    Case(10),
    Case(10, pooled=True),
    Case(1),
    Case(32),
    Case(64, images=128),
    Case(256, images=512),
    Case(10, images=10),
    Case(10, images=1000),
    Case(10, images=2500),  # the paper's: CIFAR-10's 50,000 over 20 devices
)


def plain(works: Sequence[LocalWork]) -> None:
    """Train one device after the other in plain PyTorch."""
    for work in works:
        _plain(work)


def _plain(work: LocalWork) -> None:
    settings, shard, pool = work.recipe.training, work.shard, work.pool
    model = model_with(MODEL, work.weights)
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    images, labels = _images(shard), torch.from_numpy(shard.labels)
    if pool:
        pool_images, pool_labels = _images(pool), torch.from_numpy(pool.labels)
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


def vectorised(works: Sequence[LocalWork]) -> None:
    """Train all devices at once with torch.func, each with its own weights."""
    settings, pool, count = works[0].recipe.training, works[0].pool, len(works[0].shard)
    model = model_with(MODEL, works[0].weights)
    weights = {n: torch.stack([w.detach()] * len(works)) for n, w in model.named_parameters()}
    momenta = {n: torch.zeros_like(w) for n, w in weights.items()}
    images = torch.stack([_images(work.shard) for work in works])
    labels = torch.stack([torch.from_numpy(work.shard.labels) for work in works])
    if pool:
        pool_images, pool_labels = _images(pool), torch.from_numpy(pool.labels)

    def loss_of(w: dict[str, Tensor], x: Tensor, y: Tensor, weighed: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, w, (x,)), y, reduction="none") @ weighed

    step = vmap(grad_and_value(loss_of), in_dims=(0, 0, 0, None))
    device = torch.arange(len(works))[:, None]
    for rows in torch.stack([torch.randperm(count) for _ in works]).split(settings.batch_size, 1):
        x, y = images[device, rows], labels[device, rows]
        weighed = torch.full((rows.shape[1],), 1 / rows.shape[1])
        if pool:
            drawn = torch.stack([torch.randperm(len(pool))[: rows.shape[1]] for _ in works])
            x, y = torch.cat([x, pool_images[drawn]], 1), torch.cat([y, pool_labels[drawn]], 1)
            weighed = torch.cat([settings.alpha * weighed, (1 - settings.alpha) * weighed])
        gradients, losses = step(weights, x, y, weighed)
        for name, w in weights.items():
            gradient = gradients[name].add_(w, alpha=settings.weight_decay)
            w.sub_(
                momenta[name].mul_(settings.momentum).add_(gradient), alpha=settings.learning_rate
            )
        losses.tolist()


def _images(images: LabelledImages) -> Tensor:
    return torch.from_numpy(normalise(images.pixels, NORMALISATION))


def multiply() -> None:
    """Measure the matrix-multiply peak of a core."""
    a = torch.ones(PEAK_SIDE, PEAK_SIDE)
    for _ in range(10):
        torch.mm(a, a)


MULTIPLY_FLOPS = 10 * 2 * PEAK_SIDE**3


class Crew:
    """Processes that share a round's devices, or multiply matrices."""

    def __init__(
        self,
        processes: int,
        threads: int | None,
        train: Callable[[Sequence[LocalWork]], None] = plain,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._lines: list[Connection] = []
        for number in range(processes):
            line, far_end = context.Pipe()
            arguments = (far_end, threads, train, slice(number, None, processes))
            context.Process(target=_serve, args=arguments, daemon=True).start()
            self._lines.append(line)

    def do(self, job: Case | None) -> None:
        """Train the case's devices, or multiply without a case; wait for all processes."""
        for line in self._lines:
            line.send(job)
        for line in self._lines:
            line.recv()


def _serve(
    line: Connection,
    threads: int | None,
    train: Callable[[Sequence[LocalWork]], None],
    share: slice,
) -> None:
    if threads:
        torch.set_num_threads(threads)
    works: dict[Case, list[LocalWork]] = {}
    with contextlib.suppress(EOFError):
        while True:
            job = line.recv()
            if job is None:
                multiply()
            else:
                if job not in works:
                    works[job] = job.works()[share]
                train(works[job])
            line.send(None)


class Ours:
    """The devices of a round, trained as a simulation does."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._works: dict[Case, list[LocalWork]] = {}

    def do(self, case: Case) -> None:
        """Train the case's devices."""
        if case not in self._works:
            self._works[case] = case.works()
        # New weights each time, as in each round.
        weights = dict(self._works[case][0].weights)
        for _ in self._workers.train(replace(w, weights=weights) for w in self._works[case]):
            pass


def flops_per_sample() -> int:
    """Count the FLOPs of a forward and backward pass with torch's counter."""
    counter = FlopCounterMode(display=False)
    with counter:
        build_model(MODEL)(torch.zeros(1, *MODEL.image_shape)).sum().backward()
    return int(counter.get_total_flops())


def fastest(ways: Mapping[str, Callable[[], None]], passes: int) -> dict[str, float]:
    """Return the fastest pass of each way; ways take turns."""
    best = dict.fromkeys(ways, float("inf"))
    for number in range(passes + 1):
        for name, do in ways.items():
            start = time.perf_counter()
            do()
            if number:  # the first pass warms up
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def table(cases: Sequence[Case], passes: int, cores: int) -> Iterator[str]:
    """Yield the lines of the table as they are known."""
    torch.set_num_threads(1)  # ours in one process
    flops = flops_per_sample()
    yield (
        "| batch | images per device | plain loop, samples/s | plain loop, one process per core "
        "| all devices at once | ours, one process | ours, all cores "
        "| share of matrix-multiply peak |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    threaded, per_core, at_once = Crew(1, None), Crew(cores, 1), Crew(cores, 1, vectorised)
    with ProcessWorkers(cores) as workers:
        alone, together = Ours(InProcess()), Ours(workers)
        for case in cases:
            best = fastest(
                {
                    "plain": lambda case=case: threaded.do(case),
                    "plain per core": lambda case=case: per_core.do(case),
                    "at once": lambda case=case: at_once.do(case),
                    "ours": lambda case=case: alone.do(case),
                    "ours on all cores": lambda case=case: together.do(case),
                    "peak": lambda: per_core.do(None),
                },
                passes,
            )
            peak = cores * MULTIPLY_FLOPS / best["peak"]
            share = case.samples * flops / best["ours on all cores"] / peak
            ratios = " | ".join(
                f"{best['plain'] / best[way]:.2f}x"
                for way in ("plain per core", "at once", "ours", "ours on all cores")
            )
            yield f"| {case.name} | {case.samples / best['plain']:.0f} | {ratios} | {share:.0%} |"


def main() -> None:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    every = range(1, len(CASES) + 1)
    parser.add_argument("--rows", type=int, nargs="+", choices=every, default=every)
    options = parser.parse_args()
    if (load := os.getloadavg()[0]) > QUIET_LOAD:
        sys.stderr.write(
            f"other programs keep {load:.1f} processors busy: the ratios will be too high; "
            "measure again when the machine is idle\n"
        )
    cases = [CASES[row - 1] for row in options.rows]
    for line in table(cases, options.passes, options.cores):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
