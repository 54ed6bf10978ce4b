"""Sealing a pool into a snapshot."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from hfmds.algorithm.leakage.measurement import summarise_leakage
from hfmds.algorithm.pool import merge
from hfmds.domain.digest import Digest, digest_of
from hfmds.errors import (
    Conflict,
    InvalidInput,
    Unavailable,
    WrongState,
)
from hfmds.storage.blobs import FolderBlobs
from hfmds.wire.tensors import encode_batch, read_batch
from tests.synthesis_store.examples import (
    MIXTURES,
    SPEC,
    START,
    Store,
    joined,
    make_batch,
    make_mixtures,
    named,
    read_shards,
    same,
)

UNKNOWN = digest_of(b"unknown")

on_both_databases = pytest.mark.usefixtures("both_databases")


@on_both_databases
def test_a_snapshot_describes_what_was_sealed(store: Store) -> None:
    batches = {"b": make_batch(2), "a": make_batch(1), "c": make_batch(3)}
    digests = {device: store.put(device, batch) for device, batch in batches.items()}
    snapshot = store.seal(b=digests["b"], a=digests["a"])
    expected = merge({"a": batches["a"], "b": batches["b"]})
    assert (snapshot.pool_id, snapshot.spec, snapshot.sealed_at) == ("pool-1", SPEC, START)
    assert (snapshot.samples, snapshot.duplicates) == (6, 0)
    assert snapshot.class_histogram == tuple(np.bincount(expected.images.labels, minlength=5))
    assert snapshot.leakage == summarise_leakage(expected.psnr_paired, expected.psnr_nearest)
    assert [shard.digest for shard in snapshot.shards] == [digests["a"], digests["b"]]
    assert [shard.samples for shard in snapshot.shards] == [3, 3]
    assert snapshot.size_bytes == digests["a"].size_bytes + digests["b"].size_bytes
    assert read_shards(store, snapshot) == [encode_batch(batches["a"]), encode_batch(batches["b"])]


def test_contributors_are_pseudonyms_stable_within_the_store_only(tmp_path: Path) -> None:
    names = []
    for folder, pool_id in (("one", "pool-1"), ("one", "pool-2"), ("two", "pool-1")):
        store = Store(tmp_path / folder)
        store.pools.open(pool_id, SPEC)
        digests = {
            device: store.put(device, make_batch(1 + i), pool_id) for i, device in enumerate("ab")
        }
        names.append([shard.contributor for shard in store.seal(pool_id, **digests).shards])
    assert names[0] == names[1]
    assert len({*names[0], *names[2]}) == 4
    assert not {"a", "b"} & {*names[0], *names[2]}


def test_equal_samples_of_several_devices_are_kept_once(store: Store) -> None:
    common = make_batch(0, 2)
    batches = {
        "a": make_batch(1, 2),
        "b": common,
        "c": joined(make_batch(2, 1), common, make_batch(3, 1)),
        "d": common,
    }
    digests = {device: store.put(device, batch) for device, batch in batches.items()}
    snapshot = store.seal(**digests)
    assert (snapshot.samples, snapshot.duplicates) == (6, 4)
    assert [shard.samples for shard in snapshot.shards] == [2, 2, 2]
    assert [shard.digest for shard in snapshot.shards[:2]] == [digests["a"], digests["b"]]
    shards = [read_batch(store.blobs.local_path(s.digest), "shard") for s in snapshot.shards]
    assert same(joined(*shards), merge(batches))
    assert store.metric("duplicate_samples_total") == 4


def test_shares_of_mixtures_stay_with_their_samples(store: Store) -> None:
    store.pools.open("mixtures", MIXTURES)
    batches = {
        "a": make_mixtures(1, 2),
        "b": joined(make_mixtures(2, 2), make_mixtures(1, 2), make_mixtures(3, 1)),
    }
    digests = {device: store.put(device, batch, "mixtures") for device, batch in batches.items()}
    snapshot = store.seal("mixtures", **digests)
    assert snapshot.spec == MIXTURES
    assert [shard.samples for shard in snapshot.shards] == [2, 3]
    shards = [read_batch(store.blobs.local_path(s.digest), "shard") for s in snapshot.shards]
    assert same(shards[1], joined(make_mixtures(2, 2), make_mixtures(3, 1)))
    assert same(joined(*shards), merge(batches))


def test_a_batch_without_shares_cannot_spoil_a_pool_of_mixtures(store: Store) -> None:
    store.pools.open("mixtures", MIXTURES)
    with pytest.raises(InvalidInput, match="no class shares"):
        store.put("a", make_batch(1), "mixtures")
    with pytest.raises(InvalidInput, match="it has class shares"):
        store.put("a", make_mixtures(1))
    assert store.held_bytes() == 0


def test_the_order_in_which_devices_came_does_not_matter(tmp_path: Path) -> None:
    ids = set()
    for folder, order in (("one", "abc"), ("two", "cab")):
        store = Store(tmp_path / folder)
        store.pools.open("pool-1", SPEC)
        digests = {device: store.put(device, make_batch(ord(device))) for device in order}
        ids.add(store.seal(**digests).snapshot_id)
    assert len(ids) == 1


def test_equal_content_in_another_pool_is_another_snapshot(store: Store) -> None:
    store.pools.open("pool-2", SPEC)
    first = store.seal(a=store.put("a", make_batch(1)))
    second = store.seal("pool-2", a=store.put("a", make_batch(1), "pool-2"))
    assert first.shards == second.shards
    assert first.snapshot_id != second.snapshot_id


@on_both_databases
def test_sealing_again_with_the_same_batches_answers_as_the_first_time(store: Store) -> None:
    batches = named(a=store.put("a", make_batch(1)), b=store.put("b", make_batch(2)))
    sealed = store.app.sealing.seal("pool-1", batches)
    assert store.app.sealing.seal("pool-1", [*reversed(batches), batches[0]]) == sealed
    assert store.metric("pools", state="sealed") == 1


@on_both_databases
def test_sealing_again_with_other_batches_is_a_conflict(store: Store) -> None:
    a, b = store.put("a", make_batch(1)), store.put("b", make_batch(2))
    store.seal(a=a, b=b)
    for other in (named(a=a), named(a=a, b=b, c=UNKNOWN), named(a=b, b=a), named()):
        with pytest.raises(Conflict, match="other batches"):
            store.app.sealing.seal("pool-1", other)


def test_sealing_nothing_that_is_there_is_refused_and_the_pool_stays_open(store: Store) -> None:
    digest = store.put("a", make_batch(1))
    for batches in (named(), named(a=UNKNOWN), named(b=digest)):
        with pytest.raises(WrongState, match=f"none of the {len(batches)} named batches"):
            store.app.sealing.seal("pool-1", batches)
    store.put("b", make_batch(2))


@on_both_databases
def test_a_named_batch_that_is_not_there_is_left_out_and_listed_each_time(
    tmp_path: Path, store: Store
) -> None:
    earlier, b = store.put("a", make_batch(1)), store.put("b", make_batch(2))
    store.put("a", make_batch(3))  # in place of the earlier
    batches = named(d=b, c=UNKNOWN, b=b, a=earlier)
    sealed = store.app.sealing.seal("pool-1", batches)
    assert sealed.missing == tuple(named(a=earlier, c=UNKNOWN, d=b))
    assert [shard.digest for shard in sealed.snapshot.shards] == [b]
    assert store.app.sealing.seal("pool-1", batches) == sealed
    assert Store(tmp_path).app.sealing.seal("pool-1", batches) == sealed
    with pytest.raises(Conflict):  # though it would give the same snapshot
        store.seal(b=b)


def test_equal_batches_of_two_devices_are_two_contributions(store: Store) -> None:
    digest = store.put("a", make_batch(1))
    store.put("b", make_batch(1))
    snapshot = store.seal(a=digest, b=digest)
    assert (snapshot.samples, snapshot.duplicates) == (3, 3)
    with pytest.raises(Conflict):
        store.seal(a=digest)


@on_both_databases
def test_content_that_is_not_in_the_snapshot_is_deleted(store: Store) -> None:
    sealed, left_out = store.put("a", make_batch(1)), store.put("b", make_batch(2))
    trimmed = store.put("c", joined(make_batch(1, 2), make_batch(3, 2)))
    snapshot = store.seal(a=sealed, c=trimmed)
    assert not store.blobs.contains(left_out)
    assert not store.blobs.contains(trimmed) or trimmed in {s.digest for s in snapshot.shards}
    assert store.held_bytes() == snapshot.size_bytes
    assert store.metric("content_bytes") == snapshot.size_bytes


@pytest.mark.parametrize("late", ["a", "c"])
def test_a_pool_that_changes_while_it_is_sealed_is_to_be_sealed_again(
    store: Store, late: str
) -> None:
    """Either a merged batch is replaced, or one that was missing comes."""
    a, b = store.put("a", make_batch(1)), store.put("b", make_batch(2))
    batches = frozenset(named(a=a, b=b, c=digest_of(encode_batch(make_batch(3)))))
    basis = store.app.snapshot_records.seal_input("pool-1", batches)
    assert list(basis.present) == named(a=a, b=b)
    stale = store.app.builder.build(basis)
    store.put(late, make_batch(3))
    with pytest.raises(Unavailable, match="try again"):
        store.app.snapshot_records.record(stale, batches, basis)
    sealed = store.app.sealing.seal("pool-1", batches)
    assert len(sealed.missing) == (2 if late == "a" else 0)


@on_both_databases
async def test_concurrent_seals_give_one_snapshot(store: Store) -> None:
    common = make_batch(0, 2)
    a, b = store.put("a", common), store.put("b", joined(common, make_batch(1)))
    seals = (asyncio.to_thread(store.seal, a=a, b=b) for _ in range(4))
    snapshots = await asyncio.gather(*seals)
    assert len({snapshot.snapshot_id for snapshot in snapshots}) == 1
    assert store.metric("duplicate_samples_total") == 2
    assert read_shards(store, snapshots[0])


def test_a_seal_is_given_up_at_its_next_step_when_the_store_stops(tmp_path: Path) -> None:
    class Stopping(FolderBlobs):
        def put_bytes(self, data: bytes | memoryview) -> Digest:
            if sealing:
                store.app.builder.stop()
            return super().put_bytes(data)

    sealing = False
    store = Store(tmp_path, blobs=Stopping(tmp_path / "blobs"))
    store.pools.open("pool-1", SPEC)
    common = make_batch(0, 2)
    a = store.put("a", common)
    b, c = (store.put(each, joined(common, make_batch(n))) for each, n in (("b", 1), ("c", 2)))
    before, sealing = store.held_bytes(), True
    with pytest.raises(Unavailable, match="stopping"):
        store.seal(a=a, b=b, c=c)  # of which b's and c's shards are written
    assert (store.held_bytes(), store.orphans()) == (before, 0)
    assert Store(tmp_path).seal(a=a, b=b, c=c).samples
