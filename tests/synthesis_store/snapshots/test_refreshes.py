"""Refreshes one after the other: what a snapshot carries over, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import PoolState
from hfmds.errors import NotAllowed, Unavailable, WrongState
from tests.synthesis_store.examples import (
    ACCUMULATE,
    LARGE,
    SPEC,
    Store,
    content_of,
    details_of,
    joined,
    make_batch,
    named,
    refresh,
    same,
)

on_both_databases = pytest.mark.usefixtures("both_databases")


def test_a_large_contribution_is_cut_into_shards_in_order(tmp_path: Path) -> None:
    store = Store(tmp_path)
    batch = make_batch(1, 300)
    snapshot = refresh(store, 1, LARGE, a=batch)
    assert [shard.samples for shard in snapshot.shards] == [128, 128, 44]
    assert same(content_of(store, snapshot), batch)
    assert store.held_bytes() == snapshot.size_bytes
    labels = np.bincount(batch.images.labels[:128], minlength=5)
    assert snapshot.shards[0].class_counts == dict(enumerate(labels.tolist()))


@on_both_databases
def test_accumulating_keeps_shards_as_they_are_and_adds_what_is_new(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = refresh(store, 1, ACCUMULATE, a=make_batch(1), b=make_batch(2))
    assert (first.parent_snapshot_id, first.carried_samples) == ("", 0)
    second = refresh(
        store, 2, ACCUMULATE, a=joined(make_batch(3), make_batch(2).take(np.array([0])))
    )
    assert second.parent_snapshot_id == first.snapshot_id
    assert second.shards[:2] == first.shards
    assert [shard.first_round for shard in second.shards] == [1, 1, 2]
    # One of the new samples is in the snapshot before, and is there once.
    assert (second.samples, second.carried_samples) == (9, 6)
    assert (second.duplicates, second.repeated_samples) == (1, 1)
    expected = joined(make_batch(1), make_batch(2), make_batch(3))
    assert same(content_of(store, second), expected)
    assert second.class_histogram == tuple(np.bincount(expected.images.labels, minlength=5))
    assert second.leakage.paired_max == expected.psnr_paired.max()
    assert second.histograms.ssim_nearest.samples == 9


def test_the_oldest_samples_leave_first_when_there_are_too_many(tmp_path: Path) -> None:
    store = Store(tmp_path)
    spec = replace(SPEC, policy=PoolPolicy(refresh="accumulate", refresh_max_samples=7))
    batches = [make_batch(seed) for seed in range(4)]
    snapshots = [refresh(store, n, spec, a=batch) for n, batch in enumerate(batches, 1)]
    assert [snapshot.samples for snapshot in snapshots] == [3, 6, 7, 7]
    expected = joined(batches[1].take(np.array([2])), batches[2], batches[3])
    assert same(content_of(store, snapshots[3]), expected)
    assert snapshots[3].leakage.nearest_max == expected.psnr_nearest.max()


def test_decay_keeps_a_fraction_of_each_class(tmp_path: Path) -> None:
    store = Store(tmp_path)
    spec = replace(SPEC, policy=PoolPolicy(refresh="decay"), max_samples_per_device=300)
    first = refresh(store, 1, spec, a=make_batch(1, 200), b=make_batch(2, 200))
    second = refresh(store, 2, spec, a=make_batch(3))
    halves = np.array(first.class_histogram) // 2
    new = np.bincount(make_batch(3).images.labels, minlength=5)
    assert second.class_histogram == tuple((halves + new).tolist())
    assert second.carried_samples == halves.sum()
    assert {shard.digest for shard in second.shards} & {shard.digest for shard in first.shards}


def test_replace_keeps_repeated_samples_and_counts_them(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = refresh(store, 1, a=make_batch(1))
    second = refresh(store, 2, a=make_batch(1), b=make_batch(2))
    assert (second.samples, second.duplicates, second.repeated_samples) == (6, 0, 3)
    assert (second.carried_samples, second.parent_snapshot_id) == (0, first.snapshot_id)


def test_nothing_is_carried_over_from_other_runs_or_from_a_deleted_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    refresh(store, 1, ACCUMULATE, a=make_batch(1))
    other = refresh(store, 1, replace(ACCUMULATE, run_id="run-2"), a=make_batch(2))
    assert other.parent_snapshot_id == ""
    assert store.app.retention.release("run-1") == 1
    again = refresh(store, 2, ACCUMULATE, a=make_batch(3))
    assert (again.parent_snapshot_id, again.samples) == ("", 3)


def test_samples_over_the_limits_are_dropped_when_the_pool_is_sealed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    batch = make_batch(1)
    limit = float(np.sort(batch.psnr_paired)[1])
    policy = PoolPolicy(psnr_paired_max_db=limit, leakage_action="drop")
    snapshot = refresh(store, 1, replace(SPEC, policy=policy), a=batch)
    assert (snapshot.samples, snapshot.leaking_samples, snapshot.leaking_samples_dropped) == (
        2,
        1,
        1,
    )
    assert snapshot.leakage.paired_max == pytest.approx(limit)


@on_both_databases
def test_a_pool_that_leaks_too_much_is_halted_and_its_content_deleted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    policy = PoolPolicy(halt_psnr_paired_p99_db=5.0, halt_minimum_samples=4)
    store.pools.open("pool-1", replace(SPEC, policy=policy))
    store.put("a", make_batch(1))
    with pytest.raises(NotAllowed, match="pool-1 is halted: the 99th percentile"):
        store.put("b", make_batch(2))
    assert store.held_bytes() == 0
    for refused in ("a", "c"):
        with pytest.raises(NotAllowed, match="halted"):
            store.put(refused, make_batch(3))
    with pytest.raises(WrongState, match="pool-1 is halted: the 99th percentile"):
        store.app.sealing.seal("pool-1", named())
    status = store.pools.status("pool-1")
    assert (status.state, status.devices, status.leakage.samples) == (PoolState.HALTED, 2, 6)
    (event,) = details_of(store, "pool-halted")
    assert (event["pool"], event["samples"]) == ("pool-1", 6)
    (erased,) = details_of(store, "content-erased")
    assert (erased["reason"], erased["blobs"]) == ("halted", 2)


def test_a_small_pool_is_halted_when_it_is_sealed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    policy = PoolPolicy(halt_psnr_paired_p99_db=5.0)
    store.pools.open("pool-1", replace(SPEC, policy=policy))
    digest = store.put("a", make_batch(1))
    with pytest.raises(WrongState, match="pool-1 is halted"):
        store.seal(a=digest)
    assert store.held_bytes() == 0
    assert store.app.snapshots.list(None) == []


def test_a_failed_seal_leaves_no_shard_behind(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.pools.open("pool-1", LARGE)
    a, b = store.put("a", make_batch(1, 300)), store.put("b", make_batch(2))
    store.blobs.delete(b)  # as no crash does it, but a careless operator
    with pytest.raises(Unavailable, match="not sealed yet"):
        store.seal(a=a, b=b)
    assert store.held_bytes() == a.size_bytes
