"""The metrics of the inventory; no id of a device becomes a label."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from hfmds.domain.digest import digest_of
from hfmds.domain.histograms import Histogram
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.recipe import ModelSpec
from hfmds.errors import NotFound, Unavailable
from hfmds.wire.conversions.records import decode_snapshot
from synthesis_store.monitoring.inventory import MAX_RUNS, Inventory
from synthesis_store.monitoring.inventory_metrics import InventoryMetrics
from synthesis_store.monitoring.leakage_metrics import statistics_of
from synthesis_store.monitoring.metrics import StoreMetrics
from synthesis_store.pools.pool_records import BatchKey
from synthesis_store.pools.refused_batches import REFUSAL_REASONS
from tests.synthesis_store.examples import SPEC, Store, chunks_of, make_batch


def series(registry: CollectorRegistry, name: str) -> dict[str, float]:
    """The values of a metric, by its last label."""
    return {
        list(sample.labels.values())[-1]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def shown_by(store: Store, name: str) -> dict[str, float]:
    """The values of a metric of a store whose inventory was just read."""
    store.app.inventory.refresh()
    return series(store.registry, name)


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
    policy = PoolPolicy(
        psnr_nearest_max_db=30.0,
        halt_psnr_paired_p99_db=25.0,
        ssim_paired_max=0.6,
        halt_ssim_paired_p99=0.65,
        halt_ssim_nearest_p99=0.7,
    )
    store.pools.open("pool-2", replace(SPEC, policy=policy))
    batch = make_batch(1, samples=4)
    batch.images.labels[:] = [0, 0, 2, 2]
    batch.ssim_nearest[:] = [0.101, 0.201, 0.301, 0.401]
    store.seal("pool-2", a=store.put("a", batch, "pool-2"))
    for shown in (store, Store(tmp_path)):

        def value(name: str, real: str, statistic: str, shown: Store = shown) -> float | None:
            labels = {"run": SPEC.run_id, "real": real, "statistic": statistic}
            return shown.metric(f"newest_snapshot_{name}", **labels)

        assert value("ssim_ratio", "nearest", "max") == pytest.approx(0.41)
        assert value("ssim_ratio", "nearest", "mean") == pytest.approx(0.251, abs=0.005)
        assert (value("ssim_ratio", "paired", "max") or 1) <= 0.01
        assert value("psnr_limit_db", "nearest", "max") == 30
        assert value("psnr_limit_db", "paired", "p99") == 25
        assert value("psnr_limit_db", "paired", "max") == 100  # none
        assert value("ssim_limit_ratio", "paired", "max") == 0.6
        assert value("ssim_limit_ratio", "paired", "p99") == 0.65
        assert value("ssim_limit_ratio", "nearest", "p99") == 0.7
        classes = shown_by(shown, "hfmds_store_newest_snapshot_class_samples")
        assert classes == {"0": 2, "1": 0, "2": 2, "3": 0, "4": 0}


def test_of_many_classes_a_hundred_are_shown_and_the_others_together(tmp_path: Path) -> None:
    store = Store(tmp_path)
    model = ModelSpec(channels=1, height=4, width=3, classes=5000)
    store.pools.open("many", replace(SPEC, model=model))
    batch = make_batch(1, samples=4, model=model)
    batch.images.labels[:] = np.array([0, 99, 100, 4999])
    store.seal("many", a=store.put("a", batch, "many"))
    name = "hfmds_store_newest_snapshot_class_samples"
    shown = shown_by(store, name)
    assert len(shown) == 101
    assert (shown["0"], shown["98"], shown["99"], shown["other"]) == (1, 0, 1, 2)
    # A snapshot of few classes leaves nothing of the others of its run.
    store.pools.open("few", SPEC)
    store.seal("few", a=store.put("a", make_batch(2), "few"))
    assert len(shown_by(store, name)) == 5


def test_series_exist_with_0_before_the_first_event() -> None:
    registry = CollectorRegistry()
    StoreMetrics(registry, REFUSAL_REASONS)
    InventoryMetrics(Inventory, registry).refresh()
    assert set(series(registry, "hfmds_store_refused_batches_total").values()) == {0}
    assert series(registry, "hfmds_store_near_duplicate_samples_total") == {
        "left out": 0,
        "kept": 0,
    }
    assert series(registry, "hfmds_store_pools")["halted"] == 0
    assert registry.get_sample_value("hfmds_store_halted_pools_total") == 0


@pytest.mark.usefixtures("both_databases")
def test_replicas_show_the_same_whichever_of_them_sealed(tmp_path: Path) -> None:
    one, other = Store(tmp_path), Store(tmp_path)
    for store, run_id, samples in ((one, "first", 3), (other, "second", 5), (one, "second", 4)):
        pool_id = f"{run_id}-{samples}"
        store.pools.open(pool_id, replace(SPEC, run_id=run_id))
        store.seal(pool_id, a=store.put("a", make_batch(samples, samples=samples), pool_id))
        other.clock.advance(300)
    shown = [shown_by(each, "hfmds_store_newest_snapshot_samples") for each in (one, other)]
    assert shown == [{"first": 3, "second": 4}] * 2
    assert one.metric("pools", state="sealed") == other.metric("pools", state="sealed") == 3
    content = sum(snapshot.size_bytes for snapshot in one.app.snapshots.list(None))
    assert other.metric("content_bytes") == content


def test_a_run_that_is_released_is_shown_no_more(store: Store) -> None:
    store.seal(a=store.put("a", make_batch(1)))
    assert shown_by(store, "hfmds_store_newest_snapshot_samples") == {SPEC.run_id: 3}
    store.app.retention.release(SPEC.run_id)
    assert shown_by(store, "hfmds_store_newest_snapshot_samples") == {}


@pytest.mark.usefixtures("both_databases")
def test_a_snapshot_with_the_number_of_a_collected_one_is_shown_as_itself(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for run_id, samples in (("first", 3), ("second", 5)):
        store.pools.open(f"pool-of-{run_id}", replace(SPEC, run_id=run_id))
        batch = make_batch(samples, samples=samples)
        store.seal(f"pool-of-{run_id}", a=store.put("a", batch, f"pool-of-{run_id}"))
        shown = shown_by(store, "hfmds_store_newest_snapshot_samples")
        assert shown == {run_id: samples}
        store.app.retention.release(run_id)
        store.app.retention.collect()


def test_of_many_runs_those_are_shown_that_sealed_last(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(MAX_RUNS + 2):
        pool_id = f"pool-of-{number}"
        store.pools.open(pool_id, replace(SPEC, run_id=f"run-{number}"))
        store.seal(pool_id, a=store.put("a", make_batch(1), pool_id))
    shown = shown_by(store, "hfmds_store_newest_snapshot_samples")
    assert shown.keys() == {f"run-{number}" for number in range(2, MAX_RUNS + 2)}


def test_snapshots_are_read_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(
        "synthesis_store.monitoring.inventory.decode_snapshot",
        lambda record: read.append(record) or decode_snapshot(record),
    )
    store.seal(a=store.put("a", make_batch(1)))
    for _ in range(3):
        assert store.metric("newest_snapshot_samples", run=SPEC.run_id) == 3
    assert len(read) == 1


def test_content_is_measured_now_and_then(store: Store) -> None:
    assert store.metric("content_bytes") == 0
    digest = store.put("a", make_batch(1))
    assert store.metric("content_bytes") == 0
    store.clock.advance(300)
    assert store.metric("content_bytes") == digest.size_bytes


@pytest.mark.usefixtures("both_databases")
def test_halted_pools_stay_counted_after_a_restart_and_without_their_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.pools.open("pool-1", SPEC)
    assert store.metric("halted_pools_total") == 0
    store.app.pool_records.halt("pool-1", "it leaks")
    store.app.pool_records.halt("pool-1", "it leaks")
    assert store.metric("halted_pools_total") == 1
    store.app.retention.release(SPEC.run_id)
    store.app.retention.collect()
    again = Store(tmp_path)
    assert again.metric("pools", state="halted") == 0
    assert again.metric("halted_pools_total") == store.metric("halted_pools_total") == 1
    again.pools.open("pool-2", SPEC)
    again.app.pool_records.halt("pool-2", "it leaks, too")
    assert again.metric("halted_pools_total") == store.metric("halted_pools_total") == 2


def test_while_the_database_is_away_the_rest_is_shown() -> None:
    registry, is_away = CollectorRegistry(), False

    def read() -> Inventory:
        if is_away:
            raise Unavailable("the database is away")
        return Inventory()

    StoreMetrics(registry, REFUSAL_REASONS)
    inventory = InventoryMetrics(read, registry)
    inventory.refresh()
    assert registry.get_sample_value("hfmds_store_content_bytes") == 0
    is_away = True
    inventory.refresh()
    assert registry.get_sample_value("hfmds_store_accepted_samples_total") == 0
    assert registry.get_sample_value("hfmds_store_content_bytes") is None
    failures = "hfmds_store_scrape_failures_total"
    assert registry.get_sample_value(failures, {"part": "stock"}) == 1
    is_away = False
    inventory.refresh()
    assert registry.get_sample_value("hfmds_store_content_bytes") == 0


def test_while_the_database_hangs_an_old_inventory_is_not_shown() -> None:
    registry, seconds = CollectorRegistry(), 100.0
    InventoryMetrics(Inventory, registry, lambda: seconds).refresh()
    seconds += 15
    assert registry.get_sample_value("hfmds_store_content_bytes") == 0
    seconds += 1
    assert registry.get_sample_value("hfmds_store_content_bytes") is None


def test_hostile_names_make_no_series(store: Store) -> None:
    store.app.inventory.refresh()
    before = generate_latest(store.registry).count(b"\n")
    for n in range(8):
        key = BatchKey(f"evil-pool-{n}", f"evil-device-{n}", digest_of(b"%d" % n))
        with pytest.raises(NotFound):
            store.put_chunks(key, 0, chunks_of(b"x"))
        store.put(f"evil-device-{n}", make_batch(n))
    store.app.inventory.refresh()
    exposition = generate_latest(store.registry)
    assert b"evil" not in exposition
    assert exposition.count(b"\n") == before
