"""Minimal domain values for tests."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import numpy as np

from hfmds.cli.watch_run import FollowedRun
from hfmds.domain.devices import Device, DeviceProfile, DeviceState
from hfmds.domain.digest import Digest
from hfmds.domain.learning import (
    Evaluation,
    LabelledImages,
    LeakageSummary,
    Pool,
    SyntheticBatch,
    Traffic,
)
from hfmds.domain.methods import FedAvg, Hfmds, Method
from hfmds.domain.pools import PoolSpec, Shard, Snapshot
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import Phase, Progress, Round, Run, RunSpec, RunState

MOMENT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
DIGEST = Digest("ab" * 32, 1_500_000)
LEAKAGE = LeakageSummary(10.1, 11.2, 12.3, 13.4, 14.5, 15.6)
MODEL = ModelSpec(channels=1, height=16, width=16, classes=10)


def a_spec(rounds: int = 3, method: Method | None = None) -> RunSpec:
    recipe = Recipe(MODEL, Normalisation((0.5,), (0.25,)), rounds, method=method or FedAvg())
    return RunSpec(recipe, RoundPolicy(minimum_devices=2))


def a_round(number: int, accuracy: float | None = 0.5, pool: bool = False) -> Round:
    return Round(
        number=number,
        device_ids=("device-00", "device-01"),
        weights=DIGEST,
        training_loss=1.25,
        evaluation=None if accuracy is None else Evaluation(accuracy, 1.5, 360),
        refreshed=pool and number == 2,
        pool=Pool("snapshot-1", 40, LEAKAGE) if pool else None,
        traffic=Traffic(2_000_000, 1_000_000),
        duration_seconds=2.5,
    )


def a_run(
    run_id: str = "run-1",
    state: RunState = RunState.RUNNING,
    completed_rounds: int = 0,
    **changes: object,
) -> Run:
    progress = Progress(completed_rounds + 1, Phase.TRAINING, 1, 2)
    run = Run(
        run_id=run_id,
        spec=a_spec(),
        state=state,
        state_reason="",
        created_at=MOMENT,
        progress=None if state.ended else progress,
        completed_rounds=completed_rounds,
        last_round=a_round(completed_rounds) if completed_rounds else None,
    )
    return dataclasses.replace(run, **changes)  # type: ignore[arg-type]


def a_followed_run(label: str, accuracies: list[float], pool: bool = False) -> FollowedRun:
    spec = a_spec(method=Hfmds() if pool else FedAvg())
    run = a_run(label.lower(), RunState.COMPLETED, len(accuracies), spec=spec)
    rounds = [a_round(n, share, pool and n > 1) for n, share in enumerate(accuracies, start=1)]
    return FollowedRun(label, run, rounds)


def a_device(device_id: str = "device-00") -> Device:
    profile = DeviceProfile(samples=60, software_version="0.1.0", engine="torch-cpu")
    return Device(device_id, DeviceState.WORKING, profile, MOMENT, 7, 1, "task-9")


def a_snapshot(shards: tuple[Shard, ...] = ()) -> Snapshot:
    return Snapshot(
        snapshot_id="snapshot-1",
        pool_id="pool-1",
        spec=PoolSpec("run-1", 2, DIGEST, MODEL, 20, "hfmds"),
        samples=40,
        class_histogram=(4,) * 10,
        duplicates=1,
        leakage=LEAKAGE,
        sealed_at=MOMENT,
        size_bytes=12_345_678,
        shards=shards,
    )


def a_pool(per_class: int = 3, classes: int = 4) -> SyntheticBatch:
    random = np.random.default_rng(0)
    count = per_class * classes
    pixels = random.integers(0, 256, (count, 1, 16, 16), dtype=np.uint8)
    labels = np.repeat(np.arange(classes), per_class).astype(np.int64)
    return SyntheticBatch(
        LabelledImages(pixels, labels),
        psnr_paired=random.normal(10, 1, count).astype(np.float32),
        psnr_nearest=random.normal(11, 1, count).astype(np.float32),
        ssim_paired=random.uniform(-0.1, 0.2, count).astype(np.float32),
        ssim_nearest=random.uniform(0, 0.3, count).astype(np.float32),
    )
