"""What the store shows of its newest snapshot, and that no name from outside becomes a label."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from hfmds.algorithm.histograms import Histogram
from hfmds.algorithm.pool_policy import PoolPolicy
from hfmds.algorithm.recipes import ModelSpec
from hfmds.digest import digest_of
from hfmds.errors import NotFound
from synthesis_store.leakage_metrics import statistics_of
from synthesis_store.metrics import StoreMetrics
from synthesis_store.pool_records import BatchKey
from tests.synthesis_store.examples import SPEC, Store, chunks_of, make_batch


def series(registry: CollectorRegistry, name: str) -> dict[str, float]:
    """The values of a metric with one label, by that."""
    return {
        label: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
        for label in sample.labels.values()
    }


def test_statistics_round_up_to_their_range() -> None:
    assert statistics_of(Histogram(-1.0, 0.5, (1, 0, 1, 0))) == {
        "mean": pytest.approx(-0.25),
        "p99": pytest.approx(-0.5),  # of two values the lower one
        "max": pytest.approx(0.5),
    }
    assert statistics_of(Histogram(0.0, 1.0, (0, 0))) == {}


def test_ssim_limits_and_classes_of_the_newest_snapshot_are_shown_also_after_a_restart(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    policy = PoolPolicy(psnr_nearest_max_db=30.0, halt_psnr_paired_p99_db=25.0, ssim_paired_max=0.6)
    store.pools.open("pool-2", replace(SPEC, policy=policy))
    batch = make_batch(1, samples=4)
    batch.images.labels[:] = [0, 0, 2, 2]
    batch.ssim_nearest[:] = [0.101, 0.201, 0.301, 0.401]
    store.seal("pool-2", a=store.put("a", batch, "pool-2"))
    for shown in (store, Store(tmp_path)):

        def value(name: str, real: str, statistic: str, shown: Store = shown) -> float | None:
            return shown.metric(f"newest_snapshot_{name}", real=real, statistic=statistic)

        assert value("ssim_ratio", "nearest", "max") == pytest.approx(0.41)
        assert value("ssim_ratio", "nearest", "mean") == pytest.approx(0.251, abs=0.005)
        assert (value("ssim_ratio", "paired", "max") or 1) <= 0.01
        assert value("psnr_limit_db", "nearest", "max") == 30
        assert value("psnr_limit_db", "paired", "p99") == 25
        assert value("psnr_limit_db", "paired", "max") == 100  # none
        assert value("ssim_limit_ratio", "paired", "max") == 0.6
        classes = series(shown.registry, "hfmds_store_newest_snapshot_class_samples")
        assert classes == {"0": 2, "1": 0, "2": 2, "3": 0, "4": 0}


def test_of_many_classes_a_hundred_are_shown_and_the_others_together(tmp_path: Path) -> None:
    store = Store(tmp_path)
    model = ModelSpec(channels=1, height=4, width=3, classes=5000)
    store.pools.open("many", replace(SPEC, model=model))
    batch = make_batch(1, samples=4, model=model)
    batch.images.labels[:] = np.array([0, 99, 100, 4999])
    store.seal("many", a=store.put("a", batch, "many"))
    name = "hfmds_store_newest_snapshot_class_samples"
    shown = series(store.registry, name)
    assert len(shown) == 101
    assert (shown["0"], shown["98"], shown["99"], shown["other"]) == (1, 0, 1, 2)
    # A snapshot of few classes leaves nothing of the others.
    store.pools.open("few", SPEC)
    store.seal("few", a=store.put("a", make_batch(2), "few"))
    assert len(series(store.registry, name)) == 5


def test_what_did_not_happen_yet_is_shown_as_0() -> None:
    registry = CollectorRegistry()
    StoreMetrics(registry)
    assert set(series(registry, "hfmds_store_refused_batches_total").values()) == {0}
    assert series(registry, "hfmds_store_near_duplicate_samples_total") == {
        "left out": 0,
        "kept": 0,
    }
    assert series(registry, "hfmds_store_pools")["halted"] == 0


def test_hostile_names_make_no_series(store: Store) -> None:
    before = generate_latest(store.registry).count(b"\n")
    for n in range(8):
        key = BatchKey(f"evil-pool-{n}", f"evil-device-{n}", digest_of(b"%d" % n))
        with pytest.raises(NotFound):
            asyncio.run(store.pools.put(key, 0, chunks_of(b"x")))
        store.put(f"evil-device-{n}", make_batch(n))
    exposition = generate_latest(store.registry)
    assert b"evil" not in exposition
    assert exposition.count(b"\n") == before
