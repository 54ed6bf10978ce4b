"""Content that the database names but the storage has lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hfmds.domain.digest import Digest
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import PoolState
from hfmds.errors import Unavailable, WrongState
from hfmds.storage.blobs import FolderBlobs
from hfmds.wire.tensors import encode_batch
from synthesis_store.snapshots.missing_content import LOST_AFTER
from tests.synthesis_store.examples import (
    ACCUMULATE,
    SPEC,
    Store,
    content_of,
    details_of,
    make_batch,
    named,
    refresh,
    same,
)

on_both_databases = pytest.mark.usefixtures("both_databases")


def filled(store: Store, *devices: str) -> dict[str, Digest]:
    return {device: store.put(device, make_batch(seed)) for seed, device in enumerate(devices)}


def wait(store: Store) -> None:
    store.clock.advance(LOST_AFTER.total_seconds())


@on_both_databases
def test_a_pool_is_sealed_without_a_batch_that_stays_away(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    batches = filled(store, "a", "b", "c")
    store.blobs.delete(batches["b"])
    with pytest.raises(Unavailable, match=r"1 of its batches .* from 03:14:05"):
        store.app.sealing.seal("pool-1", named(**batches))
    assert details_of(store, "batch-lost") == []
    wait(store)
    sealed = store.app.sealing.seal("pool-1", named(**batches))
    assert sealed.missing == tuple(named(b=batches["b"]))
    assert [shard.digest for shard in sealed.snapshot.shards] == [batches["a"], batches["c"]]
    contributor = store.app.identity.pseudonym("b")
    assert details_of(store, "batch-lost") == [
        {"contributor": contributor, "pool": "pool-1", "samples": 3}
    ]
    assert "content is lost" in caplog.text
    status = store.pools.status("pool-1")
    assert (status.devices, status.samples, status.leakage.samples) == (2, 6, 6)
    assert store.orphans() == 0
    assert store.app.sealing.seal("pool-1", named(**batches)) == sealed


def test_all_lost_content_is_given_up_together(store: Store) -> None:
    batches = filled(store, *"abcde")
    for device in "bcd":
        store.blobs.delete(batches[device])
    with pytest.raises(Unavailable, match="3 of its batches"):
        store.app.sealing.seal("pool-1", named(**batches))
    wait(store)
    assert len(store.app.sealing.seal("pool-1", named(**batches)).missing) == 3


def test_a_batch_that_shows_late_is_not_given_up(store: Store) -> None:
    batches = filled(store, "a", "b", "c")
    for device in "ab":
        store.blobs.delete(batches[device])
    store.clock.advance(10 * LOST_AFTER.total_seconds())  # they were put long ago
    with pytest.raises(Unavailable, match="2 of its batches"):
        store.seal(**batches)
    store.clock.advance(LOST_AFTER.total_seconds() - 1)
    with pytest.raises(Unavailable, match="2 of its batches"):
        store.seal(**batches)
    store.blobs.put_bytes(encode_batch(make_batch(0)))
    store.clock.advance(1)
    sealed = store.app.sealing.seal("pool-1", named(**batches))
    assert sealed.missing == tuple(named(b=batches["b"]))
    assert sealed.snapshot.samples == 6


@on_both_databases
def test_if_all_batches_are_missing_none_is_given_up(store: Store) -> None:
    batches = filled(store, "a", "b")
    for digest in batches.values():
        store.blobs.delete(digest)
    with pytest.raises(Unavailable):
        store.seal(**batches)
    wait(store)
    for _ in range(2):  # a run is paused with the reason, and may be resumed too early
        with pytest.raises(WrongState, match="none of its 2 batches"):
            store.seal(**batches)
    for seed in range(2):
        store.blobs.put_bytes(encode_batch(make_batch(seed)))
    assert store.seal(**batches).samples == 6


def test_content_that_is_lost_later_has_the_same_time_to_come_back(store: Store) -> None:
    batches = filled(store, "a", "b", "c")
    store.blobs.delete(batches["a"])
    with pytest.raises(Unavailable):
        store.seal(**batches)
    wait(store)
    store.blobs.delete(batches["b"])
    with pytest.raises(Unavailable, match="1 of its batches"):
        store.app.sealing.seal("pool-1", named(**batches))
    assert len(details_of(store, "batch-lost")) == 1
    wait(store)
    assert store.app.sealing.seal("pool-1", named(**batches)).missing == tuple(
        named(a=batches["a"], b=batches["b"])
    )
    assert len(details_of(store, "batch-lost")) == 2


def test_a_lost_shard_is_not_carried_over(tmp_path: Path) -> None:
    store = Store(tmp_path)
    spec = replace(ACCUMULATE, policy=PoolPolicy(refresh="accumulate", near_threshold=0.35))
    first = refresh(store, 1, spec, a=make_batch(1), b=make_batch(2))
    store.blobs.delete(first.shards[0].digest)
    with pytest.raises(Unavailable, match="of the shards before"):
        refresh(store, 2, spec, c=make_batch(3))
    wait(store)
    second = refresh(store, 2, spec, c=make_batch(3))
    assert second.carried_samples == 3
    assert second.shards[0] == first.shards[1]
    assert details_of(store, "batch-lost") == []


def test_a_batch_that_is_withdrawn_while_its_pool_is_sealed_is_not_missed(tmp_path: Path) -> None:
    class Withdrawing(FolderBlobs):
        def local_path(self, digest: Digest) -> Path:
            if sealing:
                store.app.retention.withdraw("b")
            return super().local_path(digest)

    sealing = False
    store = Store(tmp_path, blobs=Withdrawing(tmp_path / "blobs"))
    store.pools.open("pool-1", SPEC)
    batches = filled(store, "a", "b")
    sealing = True
    with pytest.raises(Unavailable, match=str(batches["b"])):
        store.seal(**batches)
    assert store.app.sealing.seal("pool-1", named(**batches)).snapshot.samples == 3


def test_a_pool_that_another_replica_has_sealed_does_not_change(tmp_path: Path) -> None:
    class Restored(FolderBlobs):
        """Content that is back for as long as another replica needs to seal the pool."""

        def contains(self, digest: Digest) -> bool:
            nonlocal sealed
            found = super().contains(digest)
            if not found and next(misses) == 0:  # after it could not be read
                other.blobs.put_bytes(encode_batch(make_batch(0)))
                sealed = other.app.sealing.seal("pool-1", named(**batches))
                other.blobs.delete(digest)
            return found

    misses: Iterator[int] = itertools.repeat(-1)
    sealed = None
    store = Store(tmp_path, blobs=Restored(tmp_path / "blobs"))
    other = Store(tmp_path)
    store.pools.open("pool-1", SPEC)
    batches = filled(store, "a", "b")
    other.blobs.delete(batches["a"])
    with pytest.raises(Unavailable):
        store.seal(**batches)
    wait(store)
    misses = itertools.count()
    assert store.app.sealing.seal("pool-1", named(**batches)) == sealed
    assert sealed is not None
    assert sealed.missing == ()


def test_a_pool_seals_itself_without_lost_content(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.pools.open("pool-1", replace(SPEC, seal_quorum=2))
    batches = filled(store, "a", "b")
    store.blobs.delete(batches["a"])
    store.app.sealing.seal_due()
    assert store.pools.status("pool-1").state is PoolState.OPEN
    wait(store)
    store.app.sealing.seal_due()
    status = store.pools.status("pool-1")
    assert status.state is PoolState.SEALED
    assert same(content_of(store, store.app.snapshots.get(status.snapshot_id)), make_batch(1))
