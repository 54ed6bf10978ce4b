"""An experiment that a test runs twice: simulated in its process, and by real programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from hfmds.algorithm.federation import federate
from hfmds.algorithm.methods.method_registry import first_checkpoint
from hfmds.algorithm.simulation.local_fleet import LocalFleet
from hfmds.data.packed import save_npz
from hfmds.data.sources import load_images
from hfmds.data.splits import label_skew
from hfmds.data.statistics import normalisation_of
from hfmds.domain.learning import LabelledImages, RoundResult
from hfmds.domain.methods import Hfmds, Method
from hfmds.domain.recipe import ModelSpec, Recipe, TrainingRecipe
from hfmds.domain.round_policy import EvaluationByDevices, RoundPolicy
from hfmds.domain.runs import Round, Run, RunSpec, RunState
from hfmds.service.client.peer import Peer
from hfmds.wire.clients.admin_client import AdminClient
from tests.support.programs import Program, Programs

HFMDS = Hfmds(every_rounds=2, first_round=2, samples_per_device=6, steps=8)
DEVICES = ("device-a", "device-b", "device-c")
SIZE = 16
NO_EVALUATION = EvaluationByDevices()


@dataclass(frozen=True)
class Experiment:
    """A small skewed split of digits, in memory and on disk."""

    recipe: Recipe
    shards: dict[str, LabelledImages]
    held_out: LabelledImages
    folder: Path

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.npz"

    def by(self, method: Method, rounds: int, **changes: object) -> Experiment:
        """Return this experiment with another method."""
        recipe = replace(self.recipe, method=method, rounds=rounds)
        return replace(self, recipe=replace(recipe, **changes))  # type: ignore[arg-type]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    images = load_images(f"digits:{SIZE}#train")
    split = label_skew(images.labels, len(DEVICES), 2, seed=0, samples_per_device=20)
    shards = {device_id: images.take(part) for device_id, part in zip(DEVICES, split, strict=True)}
    held_out = load_images(f"digits:{SIZE}#test")
    recipe = Recipe(
        model=ModelSpec(channels=1, height=SIZE, width=SIZE, classes=10),
        normalisation=normalisation_of(images),
        rounds=4,
        seed=7,
        training=TrainingRecipe(local_epochs=2, alpha=0.5),
        method=HFMDS,
    )
    experiment = Experiment(recipe, shards, held_out, tmp_path)
    for device_id, shard in shards.items():
        save_npz(experiment.file(device_id), shard)
    save_npz(experiment.file("held-out"), held_out)
    return experiment


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with Programs(tmp_path) as started:
        yield started


def simulated(
    experiment: Experiment, evaluation: EvaluationByDevices = NO_EVALUATION
) -> list[RoundResult]:
    """Simulate the run in this process, on one thread like the devices."""
    torch.set_num_threads(1)
    recipe = experiment.recipe
    fleet = LocalFleet(recipe, experiment.shards, experiment.held_out, evaluation=evaluation)
    return list(federate(fleet, recipe, first_checkpoint(recipe)))


@asynccontextmanager
async def admin_of(coordinator: str) -> AsyncIterator[AdminClient]:
    """Open a client of the coordinator at this address, for a limited time."""
    client = AdminClient(Peer("coordinator", coordinator, "HFMDS_COORDINATOR"))
    try:
        async with asyncio.timeout(150):
            yield client
    finally:
        await client.close()


async def until_round(coordinator: str, number: int) -> None:
    """Wait until the run has completed this round."""
    async with admin_of(coordinator) as client:
        async for run, _ in client.watch_run("run"):
            if run.completed_rounds >= number:
                return
    raise AssertionError("the run ended")


async def completed(client: AdminClient, run_id: str) -> tuple[Run, tuple[Round, ...]]:
    async for _ in client.watch_run(run_id):
        pass
    run, rounds = await client.get_run(run_id), await client.list_rounds(run_id)
    assert run.state is RunState.COMPLETED, run.state_reason
    return run, rounds


async def model(client: AdminClient, run_id: str, number: int) -> bytes:
    return b"".join([chunk async for chunk in client.download_model(run_id, number)])


def spec_of(experiment: Experiment, evaluation: EvaluationByDevices = NO_EVALUATION) -> RunSpec:
    policy = RoundPolicy(len(DEVICES), 600.0, 5.0, evaluation=evaluation)
    return RunSpec(experiment.recipe, policy)


def start_devices(
    programs: Programs, experiment: Experiment, coordinator: str, store: str
) -> dict[str, Program]:
    return {
        device_id: programs.device(device_id, experiment.file(device_id), coordinator, store)
        for device_id in DEVICES
    }
