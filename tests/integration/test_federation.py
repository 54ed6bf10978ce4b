"""Three programs, real gRPC, real learning: the whole system on loopback."""

from __future__ import annotations

import asyncio
import signal
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
import torch
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from hfmds.algorithm.federation import federate
from hfmds.algorithm.local_fleet import LocalFleet
from hfmds.algorithm.models import initial_weights
from hfmds.algorithm.seeds import derive_seed
from hfmds.algorithm.types import (
    Checkpoint,
    LabelledImages,
    ModelSpec,
    Recipe,
    RoundResult,
    SynthesisRecipe,
    TrainingRecipe,
)
from hfmds.data.sources import load_images, save_npz
from hfmds.data.splits import label_skew
from hfmds.data.statistics import normalisation_of
from hfmds.service.peer import Peer
from hfmds.wire.admin_client import AdminClient
from hfmds.wire.tensors import encode_weights
from hfmds.wire.types import DeviceState, Round, RoundPolicy, Run, RunSpec, RunState
from tests.integration.programs import Program, Programs

pytestmark = pytest.mark.integration

Result = TypeVar("Result")

DEVICES = ("device-a", "device-b", "device-c")
SIZE = 16


@dataclass(frozen=True)
class Experiment:
    """A small skewed split of digits, in memory and on disk."""

    recipe: Recipe
    shards: dict[str, LabelledImages]
    held_out: LabelledImages
    folder: Path

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.npz"


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
        synthesis=SynthesisRecipe(every_rounds=2, first_round=2, samples_per_device=6, steps=8),
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


def simulated(experiment: Experiment) -> list[RoundResult]:
    """The same run in this process, as the devices compute: on one thread."""
    torch.set_num_threads(1)
    recipe = experiment.recipe
    start = Checkpoint(0, initial_weights(recipe.model, derive_seed(recipe.seed, "weights")))
    fleet = LocalFleet(recipe, experiment.shards, experiment.held_out)
    return list(federate(fleet, recipe, start))


def with_admin(coordinator: str, work: Callable[[AdminClient], Awaitable[Result]]) -> Result:
    async def call() -> Result:
        client = AdminClient(Peer("coordinator", coordinator, "HFMDS_COORDINATOR"))
        try:
            async with asyncio.timeout(150):
                return await work(client)
        finally:
            await client.close()

    return asyncio.run(call())


async def completed(client: AdminClient, run_id: str) -> tuple[Run, tuple[Round, ...]]:
    async for _ in client.watch_run(run_id):
        pass
    run, rounds = await client.get_run(run_id), await client.list_rounds(run_id)
    assert run.state is RunState.COMPLETED, run.state_reason
    return run, rounds


async def model(client: AdminClient, run_id: str, number: int) -> bytes:
    return b"".join([chunk async for chunk in client.download_model(run_id, number)])


def spec_of(experiment: Experiment) -> RunSpec:
    return RunSpec(experiment.recipe, RoundPolicy(len(DEVICES), 600.0, 5.0))


def start_devices(
    programs: Programs, experiment: Experiment, coordinator: str, store: str
) -> dict[str, Program]:
    return {
        device_id: programs.device(device_id, experiment.file(device_id), coordinator, store)
        for device_id in DEVICES
    }


def test_simulated_and_real_fleets_learn_the_same_weights(
    experiment: Experiment, programs: Programs
) -> None:
    store = programs.store().address("grpc")
    coordinator_program = programs.coordinator(store, experiment.file("held-out"))
    coordinator = coordinator_program.address("grpc")
    devices = start_devices(programs, experiment, coordinator, store)
    expected = simulated(experiment)

    async def work(client: AdminClient) -> tuple[Run, tuple[Round, ...]]:
        await client.create_run(spec_of(experiment), "crown")
        run, rounds = await completed(client, "crown")
        for result in expected:
            number = result.checkpoint.round_number
            remote = await model(client, "crown", number)
            assert remote == encode_weights(result.checkpoint.weights), f"round {number} differs"
        return run, rounds

    _, rounds = with_admin(coordinator, work)
    for result, recorded in zip(expected, rounds, strict=True):
        assert recorded.evaluation == result.evaluation
        assert recorded.refreshed == result.refreshed
        assert recorded.device_ids == result.cohort
        pool, local_pool = recorded.pool, result.checkpoint.pool
        assert (pool is None) == (local_pool is None)
        if pool and local_pool:
            assert pool.samples == local_pool.samples
            assert astuple(pool.leakage) == pytest.approx(astuple(local_pool.leakage))
        assert recorded.traffic.sent_bytes > 0
    _metrics_tell_of_the_run(coordinator_program)
    assert devices["device-a"].stop() == 0

    async def states(client: AdminClient) -> dict[str, DeviceState]:
        return {device.device_id: device.state for device in await client.list_devices()}

    assert with_admin(coordinator, states) == {
        "device-a": DeviceState.AWAY,  # it said goodbye
        "device-b": DeviceState.AVAILABLE,
        "device-c": DeviceState.AVAILABLE,
    }
    for program in (*devices.values(), coordinator_program):
        assert program.stop() == 0, program.log.read_text()
    trained = [r for r in devices["device-a"].records() if r.get("run") == "crown"]
    assert trained
    assert all("device" in record for record in trained)


def _metrics_tell_of_the_run(coordinator: Program) -> None:
    url = f"http://{coordinator.address('metrics')}"
    with urllib.request.urlopen(f"{url}/metrics") as response:
        text = response.read().decode()
    assert 'hfmds_coordinator_round_number{run="crown"} 4.0' in text
    assert 'hfmds_coordinator_accuracy_ratio{run="crown"}' in text
    assert 'hfmds_coordinator_pool_samples{run="crown"}' in text
    assert 'hfmds_coordinator_pool_psnr_db{real="paired",run="crown",statistic="mean"}' in text
    with urllib.request.urlopen(f"{url}/readyz") as response:
        assert response.status == 200


def test_killing_every_program_in_turn_changes_nothing(
    experiment: Experiment, programs: Programs
) -> None:
    store_program = programs.store()
    store = store_program.address("grpc")
    coordinator_program = programs.coordinator(store, experiment.file("held-out"))
    coordinator = coordinator_program.address("grpc")
    devices = start_devices(programs, experiment, coordinator, store)
    expected = simulated(experiment)

    def after(
        round_number: int,
    ) -> Callable[[AdminClient], Awaitable[tuple[Run, tuple[Round, ...]]]]:
        async def work(client: AdminClient) -> tuple[Run, tuple[Round, ...]]:
            async for run, rounds in client.watch_run("run"):
                if run.completed_rounds >= round_number:
                    return run, rounds
            raise AssertionError("the run ended")

        return work

    async def create(client: AdminClient) -> tuple[Run, tuple[Round, ...]]:
        return await client.create_run(spec_of(experiment), "run"), ()

    with_admin(coordinator, create)
    with_admin(coordinator, after(1))
    store_program.stop(signal.SIGKILL)
    devices["device-b"].stop(signal.SIGKILL)
    programs.store(listen=store).address("grpc")
    programs.device("device-b", experiment.file("device-b"), coordinator, store)
    with_admin(coordinator, after(2))
    coordinator_program.stop(signal.SIGKILL)
    programs.coordinator(store, experiment.file("held-out"), listen=coordinator).address("grpc")

    async def work(client: AdminClient) -> tuple[Run, tuple[Round, ...]]:
        run, rounds = await completed(client, "run")
        assert await model(client, "run", 4) == encode_weights(expected[-1].checkpoint.weights)
        return run, rounds

    _, rounds = with_admin(coordinator, work)
    assert [item.device_ids for item in rounds] == [DEVICES] * 4


def test_servers_list_their_services_and_say_when_they_are_ready(programs: Programs) -> None:
    store = programs.store()
    coordinator = programs.coordinator(store.address("grpc"))
    expected = {
        coordinator: {"hfmds.v1.CoordinatorService", "hfmds.v1.AdminService"},
        store: {"hfmds.v1.SynthesisStoreService"},
    }
    for program, services in expected.items():
        with grpc.insecure_channel(program.address("grpc")) as channel:
            reflection = ProtoReflectionDescriptorDatabase(channel)
            listed = set(reflection.get_services())
            assert services <= listed
            described = DescriptorPool(reflection)
            for service in services:
                assert described.FindServiceByName(service).methods
            health = health_pb2_grpc.HealthStub(channel)
            for service in ("", *services):
                answer = health.Check(health_pb2.HealthCheckRequest(service=service))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
