"""How long is a real round of ten devices on this machine, with onnxruntime and with torch?

    python -m benchmarks.devices.device_rounds [--devices 10] [--quick]

A federation on loopback: a coordinator, a synthesis store and ten edge clients of one thread each,
which train the paper's CNN with HFMDS-FL and a refresh in every other round. The first rounds do
not count, because they make the plan and open engines. The coordinator records the time of a round.
The script adds the processor time of all devices and the highest memory of a device.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.shared.programs import (
    MEGABYTE,
    Programs,
    StartedProgram,
    print_progress,
    print_result,
    programs,
    usage,
    warn_if_busy,
)
from hfmds.cli.watch_run import FollowedRun, follow
from hfmds.data.packed import save_npz
from hfmds.domain.learning import LabelledImages
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe, TrainingRecipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import RunSpec
from hfmds.wire.clients.admin_client import AdminClient

ENGINES = ("onnx", "torch")
MODEL = ModelSpec()
WARM_UP_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class EngineCost:
    """The results with one engine."""

    plain_seconds: float  # of a round without a refresh
    refresh_seconds: float
    cpu_seconds: float  # of all devices, in a round of either kind
    peak_bytes: int  # of the device that had most


def spec_for(devices: int, rounds: int) -> RunSpec:
    """Specify a run in which all devices take part in every round."""
    recipe = Recipe(
        MODEL,
        Normalisation((0.5,) * MODEL.channels, (0.25,) * MODEL.channels),
        rounds=WARM_UP_ROUNDS + rounds,
        training=TrainingRecipe(local_epochs=5),
        method=Hfmds(first_round=1, every_rounds=2, samples_per_device=20, steps=30),
    )
    policy = RoundPolicy(minimum_devices=devices, deadline_seconds=600, lease_seconds=60)
    return RunSpec(recipe, policy)


def save_shard(path: Path, number: int) -> str:
    """Write a hundred noise images of two classes for a device."""
    random = np.random.default_rng(number)
    pixels = random.integers(0, 256, (100, *MODEL.image_shape), np.uint8)
    save_npz(path, LabelledImages(pixels, (number + random.integers(0, 2, 100)) % MODEL.classes))
    return str(path)


async def measure(ours: Programs, engine: str, spec: RunSpec, plans: Path) -> EngineCost:
    """Run the federation with one engine."""
    store = ours.start_store().peer.address
    coordinator = ours.start_coordinator(store=store, plans_dir=str(plans))
    devices = [
        ours.start_device(
            f"device-{number:02}",
            engine=engine,
            coordinator=coordinator.peer.address,
            store=store,
            data=save_shard(ours.folder / f"{number:02}.npz", number),
            retry_max_seconds="1",
        )
        for number in range(spec.policy.minimum_devices)
    ]
    client = AdminClient(coordinator.peer)
    try:
        run = FollowedRun(engine, await client.create_run(spec))
        warm = 0.0
        async for new_rounds in follow(client, run):
            run.require_not_stuck()
            for done in new_rounds:
                print_progress(f"{engine}, round {done.number}: {done.duration_seconds:.1f} s")
                if done.number == WARM_UP_ROUNDS:
                    warm = cpu_seconds(devices)
        run.require_completed()
    finally:
        await client.close()
    measured = run.rounds[WARM_UP_ROUNDS:]
    plain, refresh = (
        median(done.duration_seconds for done in measured if done.refreshed == refreshed)
        for refreshed in (False, True)
    )
    return EngineCost(
        plain,
        refresh,
        (cpu_seconds(devices) - warm) / len(measured),
        max(usage(device.pid).peak_rss_bytes for device in devices),
    )


def cpu_seconds(devices: list[StartedProgram]) -> float:
    """Return the processor seconds of all devices since their start."""
    return sum(usage(device.pid).cpu_seconds for device in devices)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10, help="measured rounds")
    parser.add_argument(
        "--quick", action="store_true", help="run a minute, only to see that it works"
    )
    options = parser.parse_args()
    if options.quick:
        options.devices, options.rounds = 3, 2
    warn_if_busy()
    costs: dict[str, EngineCost] = {}
    spec = spec_for(options.devices, options.rounds)
    with programs() as shared:
        for engine in ENGINES:
            with programs() as ours:
                costs[engine] = asyncio.run(measure(ours, engine, spec, shared.folder / "plans"))
    print_result(
        f"| {options.devices} devices | {' | '.join(ENGINES)} | onnx / torch |\n|---|---|---|---|"
    )
    for label, name, scale, unit in (
        ("round: 50 steps of 10 + 10 on each", "plain_seconds", 1.0, "s"),
        ("round with a refresh: 30 steps of 20 more", "refresh_seconds", 1.0, "s"),
        ("all devices in a round, processor", "cpu_seconds", 1.0, "s"),
        ("peak memory of a device", "peak_bytes", 1 / MEGABYTE, "MB"),
    ):
        ours, theirs = (getattr(costs[engine], name) * scale for engine in ENGINES)
        print_result(f"| {label} | {ours:.1f} {unit} | {theirs:.1f} {unit} | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
