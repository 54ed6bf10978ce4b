"""The complete system on loopback: three programs, real gRPC and real learning."""

from __future__ import annotations

import asyncio
import signal
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import astuple, dataclass, replace
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
from hfmds.algorithm.methods.method_registry import first_checkpoint
from hfmds.algorithm.models.weight_groups import classifier_of
from hfmds.algorithm.simulation.local_fleet import LocalFleet
from hfmds.data.packed import save_npz
from hfmds.data.sources import load_images
from hfmds.data.splits import label_skew
from hfmds.data.statistics import normalisation_of
from hfmds.domain.devices import DeviceState
from hfmds.domain.learning import LabelledImages, RoundResult
from hfmds.domain.methods import (
    METHODS,
    FedAvg,
    FedGan,
    FedGen,
    FedMix,
    FedProx,
    Hfmds,
    Method,
    Moon,
)
from hfmds.domain.recipe import AggregationRecipe, ModelSpec, Recipe, TrainingRecipe
from hfmds.domain.round_policy import EvaluationByDevices, RoundPolicy
from hfmds.domain.runs import Round, Run, RunSpec, RunState
from hfmds.service.client.peer import Peer
from hfmds.wire.clients.admin_client import AdminClient
from hfmds.wire.tensors import encode_weights
from tests.support.programs import Program, Programs

pytestmark = pytest.mark.integration

Result = TypeVar("Result")

HFMDS = Hfmds(every_rounds=2, first_round=2, samples_per_device=6, steps=8)
# Each method gets enough rounds. MOON remembers from the second round on, and the generator of
# FedGen has learned something then; HFMDS-FL refreshes twice; FedGAN trains its GAN in two rounds,
# makes the pool and trains the classifier in two more.
SMALL: dict[str, tuple[Method, int]] = {
    "fedavg": (FedAvg(), 3),
    "fedprox": (FedProx(mu=0.5), 3),
    "moon": (Moon(), 3),
    "fedgen": (FedGen(noise_size=8, hidden_size=16, generator_steps=5), 3),
    "fedmix": (FedMix(mixing=0.2, samples_per_device=6), 3),
    "fedgan": (FedGan(gan_rounds=2, noise_size=8, width=4, samples_per_device=6), 4),
    "hfmds": (HFMDS, 4),
}

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


def test_every_method_gives_the_same_weights_simulated_and_over_grpc(
    experiment: Experiment, programs: Programs
) -> None:
    assert SMALL.keys() == METHODS.keys()
    experiments = {name: experiment.by(*small) for name, small in SMALL.items()}
    # Devices keep a remainder and MOON's memory, and the server keeps its momentum.
    experiments["int8"] = experiment.by(Moon(), 3, compression="int8")
    experiments["fp16"] = experiment.by(
        FedAvg(), 3, compression="fp16", aggregation=AggregationRecipe(optimiser="fedadam")
    )
    falling = replace(experiment.recipe.training, later_from_round=2, later_learning_rate=0.001)
    experiments["falling"] = experiment.by(FedAvg(), 3, training=falling)
    by_two = EvaluationByDevices(devices=2, every_rounds=2)
    store = programs.store().address("grpc")
    coordinator_program = programs.coordinator(store, experiment.file("held-out"))
    coordinator = coordinator_program.address("grpc")
    devices = start_devices(programs, experiment, coordinator, store)

    async def create(client: AdminClient) -> None:
        for name, variant in experiments.items():
            await client.create_run(spec_of(variant, by_two), name)

    # The runs share one fleet, while the test simulates them.
    with_admin(coordinator, create)
    expected = {name: simulated(variant, by_two) for name, variant in experiments.items()}

    async def compare(client: AdminClient) -> dict[str, tuple[Round, ...]]:
        rounds = {name: (await completed(client, name))[1] for name in experiments}
        for name, results in expected.items():
            for result in results:
                number = result.checkpoint.round_number
                remote = await model(client, name, number)
                local = encode_weights(result.checkpoint.weights)
                assert remote == local, f"{name}: round {number} differs"
        return rounds

    rounds = with_admin(coordinator, compare)
    for name, results in expected.items():
        for result, recorded in zip(results, rounds[name], strict=True):
            _same_round(result, recorded)
    # Each method had an effect: no two runs have the same weights.
    learned = {
        encode_weights(classifier_of(results[-1].checkpoint.weights))
        for results in expected.values()
    }
    assert len(learned) == len(experiments)
    _require_metrics_of_the_run(coordinator_program)
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
    trained = [r for r in devices["device-a"].records() if r.get("run") == "hfmds"]
    assert trained
    assert all("device" in record for record in trained)


def _same_round(result: RoundResult, recorded: Round) -> None:
    assert recorded.evaluation == result.evaluation
    assert recorded.device_evaluation == result.device_evaluation
    assert recorded.refreshed == result.refreshed
    assert recorded.device_ids == result.cohort
    pool, local_pool = recorded.pool, result.checkpoint.pool
    assert (pool is None) == (local_pool is None)
    if pool and local_pool:
        assert pool.samples == local_pool.samples
        assert astuple(pool.leakage) == pytest.approx(astuple(local_pool.leakage))
    assert recorded.traffic.sent_bytes > 0


def _require_metrics_of_the_run(coordinator: Program) -> None:
    url = f"http://{coordinator.address('metrics')}"
    with urllib.request.urlopen(f"{url}/metrics") as response:
        text = response.read().decode()
    assert 'hfmds_coordinator_round_number{run="hfmds"} 4.0' in text
    assert 'hfmds_coordinator_accuracy_ratio{run="hfmds"}' in text
    assert 'hfmds_coordinator_pool_samples{run="hfmds"}' in text
    assert 'hfmds_coordinator_pool_psnr_db{real="paired",run="hfmds",statistic="mean"}' in text
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
    # A killed device must keep prototypes, MOON's last local model and the int8 remainder.
    # A killed coordinator must keep the server's momentum.
    momentum = AggregationRecipe(optimiser="fedavgm", momentum=0.5)
    experiments = {
        "run": experiment,
        "moon": experiment.by(Moon(), 4, compression="int8", aggregation=momentum),
    }
    expected = {name: simulated(variant)[-1] for name, variant in experiments.items()}

    def after(
        round_number: int,
    ) -> Callable[[AdminClient], Awaitable[tuple[Run, tuple[Round, ...]]]]:
        async def work(client: AdminClient) -> tuple[Run, tuple[Round, ...]]:
            async for run, rounds in client.watch_run("run"):
                if run.completed_rounds >= round_number:
                    return run, rounds
            raise AssertionError("the run ended")

        return work

    async def create(client: AdminClient) -> None:
        for name, variant in experiments.items():
            await client.create_run(spec_of(variant), name)

    with_admin(coordinator, create)
    with_admin(coordinator, after(1))
    store_program.stop(signal.SIGKILL)
    devices["device-b"].stop(signal.SIGKILL)
    programs.store(listen=store).address("grpc")
    programs.device("device-b", experiment.file("device-b"), coordinator, store)
    with_admin(coordinator, after(2))
    coordinator_program.stop(signal.SIGKILL)
    programs.coordinator(store, experiment.file("held-out"), listen=coordinator).address("grpc")

    async def compare(client: AdminClient) -> None:
        for name, last in expected.items():
            _, rounds = await completed(client, name)
            assert [item.device_ids for item in rounds] == [DEVICES] * 4
            assert await model(client, name, 4) == encode_weights(last.checkpoint.weights), name

    with_admin(coordinator, compare)


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
