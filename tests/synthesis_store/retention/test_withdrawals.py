"""Devices that take their consent back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hfmds.domain.digest import Digest
from hfmds.domain.pools import Withdrawal
from hfmds.errors import NotAllowed, Unavailable
from hfmds.storage.blobs import FolderBlobs
from tests.synthesis_store.examples import (
    ACCUMULATE,
    SPEC,
    Store,
    content_of,
    details_of,
    events_of,
    joined,
    make_batch,
    named,
    refresh,
    same,
)

on_both_databases = pytest.mark.usefixtures("both_databases")


@on_both_databases
def test_a_withdrawn_device_leaves_open_pools_at_once_and_can_put_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.pools.open("pool-1", SPEC)
    a, b = store.put("a", make_batch(1)), store.put("b", make_batch(2))
    assert store.app.retention.withdraw("a") == Withdrawal(removed_batches=1, remaining_snapshots=0)
    assert store.app.retention.withdraw("a") == Withdrawal(removed_batches=0, remaining_snapshots=0)
    assert not store.blobs.contains(a)
    assert store.pools.status("pool-1").devices == 1
    for batch in (make_batch(1), make_batch(3)):
        with pytest.raises(NotAllowed, match="device a was withdrawn"):
            store.put("a", batch)
    sealed = store.app.sealing.seal("pool-1", named(a=a, b=b))
    assert sealed.missing == tuple(named(a=a))
    assert [shard.digest for shard in sealed.snapshot.shards] == [b]
    assert store.held_bytes() == b.size_bytes


@on_both_databases
def test_open_returns_the_devices_that_are_withdrawn_from_the_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.pools.open("pool-1", SPEC) == []
    for device_id, run_id in (("b", ""), ("a", SPEC.run_id), ("a", ""), ("c", "run-2")):
        store.app.retention.withdraw(device_id, run_id)
    assert store.pools.open("pool-1", SPEC) == ["a", "b"]
    assert store.pools.open("pool-2", replace(SPEC, run_id="run-2")) == ["a", "b", "c"]


@on_both_databases
def test_content_of_a_withdrawn_device_is_in_no_later_snapshot_and_goes_with_the_last(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path, keep_snapshots=1)
    first = refresh(store, 1, ACCUMULATE, a=make_batch(1), b=make_batch(2))
    assert store.app.retention.withdraw("a", by="olga") == Withdrawal(0, remaining_snapshots=1)
    assert same(content_of(store, first), joined(make_batch(1), make_batch(2)))  # as it was
    second = refresh(store, 2, ACCUMULATE, b=make_batch(3))
    assert same(content_of(store, second), joined(make_batch(2), make_batch(3)))
    assert [event.kind for event in events_of(store)][-1] == "pool-sealed"
    assert store.app.retention.collect().erased_blobs == 1
    assert store.held_bytes() == second.size_bytes
    contributor = first.shards[0].contributor
    (withdrawn,), (complete,) = (
        details_of(store, "device-withdrawn"),
        details_of(store, "withdrawal-complete"),
    )
    assert withdrawn == {"batches": 0, "by": "olga", "contributor": contributor, "run": ""}
    assert complete == {"contributor": contributor, "run": ""}
    assert [event.kind for event in events_of(store)][-3:] == [
        "snapshot-collected",
        "content-erased",
        "withdrawal-complete",
    ]


def test_a_device_can_be_withdrawn_from_one_run_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    other = replace(SPEC, run_id="run-2")
    for pool_id, spec in (("pool-1", SPEC), ("pool-2", other)):
        store.pools.open(pool_id, spec)
        store.put("a", make_batch(1), pool_id)
    assert store.app.retention.withdraw("a", "run-1").removed_batches == 1
    with pytest.raises(NotAllowed):
        store.put("a", make_batch(2), "pool-1")
    store.put("a", make_batch(2), "pool-2")
    assert store.pools.status("pool-1").devices == 0


def test_equal_content_of_another_device_stays_when_one_is_withdrawn(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.pools.open("pool-1", SPEC)
    digest = store.put("a", make_batch(1))
    store.put("b", make_batch(1))
    store.app.retention.withdraw("a")
    assert store.seal(b=digest).samples == 3


class AwayBlobs(FolderBlobs):
    """Content of which nothing can be deleted while its storage is away."""

    away = False

    def delete(self, digest: Digest) -> None:
        if self.away:
            raise Unavailable("the object store is away")
        super().delete(digest)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_withdrawal_completes_when_storage_is_back_and_the_content_is_deleted(
    tmp_path: Path, restarted: bool
) -> None:
    blobs = AwayBlobs(tmp_path / "blobs")
    store = Store(tmp_path, blobs=blobs)
    store.pools.open("pool-1", SPEC)
    store.put("a", make_batch(1))
    blobs.away = True
    with pytest.raises(Unavailable):
        store.app.retention.withdraw("a")
    blobs.away = False
    assert details_of(store, "withdrawal-complete") == []
    if restarted:
        store = Store(tmp_path)
    else:
        store.app.retention.clean_up()
    assert len(details_of(store, "withdrawal-complete")) == 1
    assert store.held_bytes() == 0


def test_a_withdrawal_is_incomplete_while_a_batch_that_was_left_out_is_stored(
    tmp_path: Path,
) -> None:
    blobs = AwayBlobs(tmp_path / "blobs")
    store = Store(tmp_path, blobs=blobs)
    store.pools.open("pool-1", SPEC)
    a, b = store.put("a", make_batch(1)), store.put("b", make_batch(2))
    blobs.away = True
    with pytest.raises(Unavailable):
        store.seal(a=a)
    store.app.retention.withdraw("b")
    assert blobs.contains(b)
    assert details_of(store, "withdrawal-complete") == []
    blobs.away = False
    store.app.retention.clean_up()
    assert not blobs.contains(b)
    assert len(details_of(store, "withdrawal-complete")) == 1


def test_a_withdrawal_during_sealing_is_respected(tmp_path: Path) -> None:
    store = Store(tmp_path)
    refresh(store, 1, ACCUMULATE, a=make_batch(1), b=make_batch(2))
    store.pools.open("run-1.2", replace(ACCUMULATE, round_number=2))
    batches = frozenset(named(b=store.put("b", make_batch(3), "run-1.2")))
    records = store.app.snapshot_records
    basis = records.seal_input("run-1.2", batches)
    stale = store.app.builder.build(basis)
    store.app.retention.withdraw("a")
    with pytest.raises(Unavailable, match="try again"):
        records.record(stale, batches, basis)
    snapshot = store.app.sealing.seal("run-1.2", batches).snapshot
    assert same(content_of(store, snapshot), joined(make_batch(2), make_batch(3)))
