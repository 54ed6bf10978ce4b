"""Worker processes must change nothing but the time it takes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hfmds.algorithm.federation import federate
from hfmds.algorithm.local_work import LocalWork
from hfmds.algorithm.methods.method_registry import first_checkpoint
from hfmds.algorithm.simulation.local_fleet import LocalFleet, Workers
from hfmds.algorithm.simulation.process_workers import ProcessWorkers
from hfmds.domain.learning import LabelledImages, RoundResult
from hfmds.domain.methods import FedGan, FedGen, FedMix, Hfmds, Method, Moon
from hfmds.errors import Diverged, InvalidInput, Unavailable, WrongState
from tests.algorithm.examples import RECIPE, assert_same, images, weights
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

SHARDS = {f"device-{k}": images(6 + 3 * k, seed=k) for k in range(5)}
METHODS = (
    Hfmds(every_rounds=2, first_round=1, samples_per_device=4, steps=2),
    Moon(),
    FedMix(samples_per_device=3),
    FedGen(generator_steps=2, generator_batch_size=4, hidden_size=8),  # has scalars
    FedGan(gan_rounds=1, width=4, noise_size=4, samples_per_device=4),
)


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessWorkers]:
    with ProcessWorkers(2) as started:
        yield started


def learned(method: Method, workers: Workers | None) -> list[RoundResult]:
    recipe = replace(RECIPE, method=method)
    fleet = LocalFleet(recipe, SHARDS, images(20, seed=9), workers)
    return list(federate(fleet, recipe, first_checkpoint(recipe)))


def work(shard: LabelledImages, seed: int = 0) -> LocalWork:
    return LocalWork(RECIPE, 1, weights(), shard, seed)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_processes_learn_what_one_process_learns(workers: ProcessWorkers, method: Method):
    alone, together = learned(method, None), learned(method, workers)
    assert len(alone) == RECIPE.rounds
    for one, other in zip(alone, together, strict=True):
        assert_same(one.checkpoint.weights, other.checkpoint.weights)
        assert one.checkpoint.pool == other.checkpoint.pool
        assert one.training_loss == other.training_loss


def test_results_come_in_the_order_of_the_tasks(workers: ProcessWorkers):
    sizes = [40, 4, 4, 30, 4, 4, 4, 4, 20, 4, 4, 4, 4]  # the small ones are done first
    results = workers.train(work(images(size), seed) for seed, size in enumerate(sizes))
    assert [trained.samples for trained in results] == sizes


def test_a_task_that_fails_says_so_in_its_place_and_the_others_go_on(workers: ProcessWorkers):
    wild = replace(RECIPE, training=replace(RECIPE.training, learning_rate=1e30))
    works = [work(images(8)), replace(work(images(8)), recipe=wild), work(images(9))]
    results = workers.train(works)
    assert next(results).samples == 8
    with pytest.raises(Diverged, match="training diverged"):
        next(results)
    assert [trained.samples for trained in workers.train(works[2:])] == [9]


def test_results_nobody_takes_do_not_mix_with_those_of_the_next_phase(workers: ProcessWorkers):
    unwanted = workers.train(work(images(size)) for size in (5, 6, 7, 8))
    assert next(unwanted).samples == 5
    unwanted.close()
    assert [trained.samples for trained in workers.train([work(images(9))])] == [9]


def test_a_phase_may_begin_before_all_results_of_another_are_taken(workers: ProcessWorkers):
    halted = workers.train(work(images(size)) for size in (5, 6, 7, 8))
    assert next(halted).samples == 5
    assert [trained.samples for trained in workers.train([work(images(9))])] == [9]
    assert [trained.samples for trained in halted] == [6, 7, 8]


def test_a_killed_worker_is_an_error_that_says_so_and_the_next_phase_has_others():
    with ProcessWorkers(2) as pair:
        before = children()
        results = pair.train(work(images(200), seed) for seed in range(8))
        next(results)
        os.kill(max(children() - before), signal.SIGKILL)
        with pytest.raises(Unavailable, match=r"a worker process ended.*fewer workers"):
            list(results)
        sizes = (6, 7, 8)
        assert [t.samples for t in pair.train(work(images(size)) for size in sizes)] == [*sizes]
    with pytest.raises(WrongState, match="closed"):
        list(pair.train([work(images(6))]))


def children() -> set[int]:
    """The worker processes of this process."""
    return {pid for process in multiprocessing.active_children() if (pid := process.pid)}


def test_workers_end_with_the_process_that_started_them():
    program = (
        "import multiprocessing, os\n"
        "from tests.algorithm.test_process_workers import ProcessWorkers, images, work\n"
        "if __name__ == '__main__':\n"
        "    workers = ProcessWorkers(1)\n"
        "    list(workers.train([work(images(5))]))\n"
        "    print(multiprocessing.active_children()[0].pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program)
        file.flush()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(
            [sys.executable, file.name], capture_output=True, text=True, env=environment
        )
    status = Path("/proc", ended.stdout.strip(), "status")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the worker is gone
        wait_until(lambda: "zombie" in status.read_text())


def test_there_must_be_a_worker():
    with pytest.raises(InvalidInput, match="0 worker processes"):
        ProcessWorkers(0)


def test_results_stay_when_the_worker_does_the_next_task(workers: ProcessWorkers):
    results = list(workers.train(work(images(8), seed) for seed in range(6)))
    again = list(workers.train(work(images(8), seed) for seed in range(6)))
    for one, other in zip(results, again, strict=True):
        assert_same(one.weights, other.weights)
    assert not np.array_equal(
        results[0].weights["conv1.weight"], results[2].weights["conv1.weight"]
    )
