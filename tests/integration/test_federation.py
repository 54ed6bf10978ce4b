"""The complete system on loopback: three programs, real gRPC and real learning."""

from __future__ import annotations

import signal
import urllib.request
from dataclasses import astuple, replace

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from hfmds.algorithm.models.weight_groups import classifier_of
from hfmds.domain.devices import DeviceState
from hfmds.domain.learning import RoundResult
from hfmds.domain.methods import (
    METHODS,
    FedAvg,
    FedGan,
    FedGen,
    FedMix,
    FedProx,
    Method,
    Moon,
)
from hfmds.domain.recipe import AggregationRecipe
from hfmds.domain.round_policy import EvaluationByDevices
from hfmds.domain.runs import Round
from hfmds.wire.tensors import encode_weights
from tests.support.digits_experiment import (
    DEVICES,
    HFMDS,
    Experiment,
    admin_of,
    completed,
    experiment,
    model,
    programs,
    simulated,
    spec_of,
    start_devices,
    until_round,
)
from tests.support.programs import Program, Programs

__all__ = ["experiment", "programs"]  # fixtures

pytestmark = pytest.mark.integration

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


async def test_every_method_gives_the_same_weights_simulated_and_over_grpc(
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

    # The runs share one fleet, while the test simulates them.
    async with admin_of(coordinator) as client:
        for name, variant in experiments.items():
            await client.create_run(spec_of(variant, by_two), name)
    expected = {name: simulated(variant, by_two) for name, variant in experiments.items()}
    async with admin_of(coordinator) as client:
        rounds = {name: (await completed(client, name))[1] for name in experiments}
        for name, results in expected.items():
            for result in results:
                number = result.checkpoint.round_number
                remote = await model(client, name, number)
                local = encode_weights(result.checkpoint.weights)
                assert remote == local, f"{name}: round {number} differs"
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
    async with admin_of(coordinator) as client:
        states = {device.device_id: device.state for device in await client.list_devices()}
    assert states == {
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


async def test_killing_every_program_in_turn_changes_nothing(
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

    async with admin_of(coordinator) as client:
        for name, variant in experiments.items():
            await client.create_run(spec_of(variant), name)
    await until_round(coordinator, 1)
    store_program.stop(signal.SIGKILL)
    devices["device-b"].stop(signal.SIGKILL)
    programs.store(listen=store).address("grpc")
    programs.device("device-b", experiment.file("device-b"), coordinator, store)
    await until_round(coordinator, 2)
    coordinator_program.stop(signal.SIGKILL)
    programs.coordinator(store, experiment.file("held-out"), listen=coordinator).address("grpc")
    async with admin_of(coordinator) as client:
        for name, last in expected.items():
            _, rounds = await completed(client, name)
            assert [item.device_ids for item in rounds] == [DEVICES] * 4
            assert await model(client, name, 4) == encode_weights(last.checkpoint.weights), name


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
