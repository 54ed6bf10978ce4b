"""What a store has after it was killed and started again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hfmds.domain.digest import digest_of
from hfmds.domain.histograms import LeakageHistograms
from hfmds.domain.pools import Contribution
from hfmds.domain.tasks import UploadState
from hfmds.errors import (
    Unavailable,
)
from hfmds.wire.tensors import encode_batch
from synthesis_store.pools.pool_records import BatchKey
from synthesis_store.pools.pool_totals import BatchTotals
from synthesis_store.snapshots.snapshot_records import SealedPool
from tests.synthesis_store.examples import (
    SPEC,
    START,
    Store,
    joined,
    make_batch,
    named,
    read_shards,
)

UNKNOWN = digest_of(b"unknown")

on_both_databases = pytest.mark.usefixtures("both_databases")


@on_both_databases
def test_everything_is_there_after_a_restart(tmp_path: Path, store: Store) -> None:
    snapshot = store.seal(a=store.put("a", make_batch(1)))
    store.pools.open("pool-2", SPEC)
    waiting = store.put("a", make_batch(2), "pool-2")

    again = Store(tmp_path)
    assert again.app.snapshots.get(snapshot.snapshot_id) == snapshot
    assert read_shards(again, snapshot) == read_shards(store, snapshot)
    assert again.pools.query(BatchKey("pool-2", "a", waiting)).complete
    assert again.metric("newest_snapshot_samples", run=SPEC.run_id) == 3
    assert again.metric("pools", state="open") == 1
    later = again.seal("pool-2", a=waiting)
    assert later.shards[0].contributor == snapshot.shards[0].contributor


@on_both_databases
def test_killed_between_content_and_record_the_put_is_simply_repeated(
    tmp_path: Path, store: Store
) -> None:
    data = encode_batch(make_batch(1))
    key = BatchKey("pool-1", "a", digest_of(data))
    store.blobs.put_bytes(data)  # and here the process is killed

    again = Store(tmp_path)
    assert again.pools.query(key) == UploadState(len(data), complete=False)
    assert again.put("a", data) == key.digest
    assert again.seal(a=key.digest).samples == 3


@on_both_databases
def test_killed_while_sealing_the_seal_is_simply_repeated(tmp_path: Path, store: Store) -> None:
    batches = named(
        a=store.put("a", make_batch(1, 2)),
        b=store.put("b", make_batch(1, 3)),
        c=store.put("c", joined(make_batch(1, 2), make_batch(3))),
    )
    basis = store.app.snapshot_records.seal_input("pool-1", frozenset(batches))
    made = store.app.builder.build(basis).snapshot  # and here the process is killed

    again = Store(tmp_path)
    missing = Contribution("d", UNKNOWN)
    assert again.app.sealing.seal("pool-1", [*batches, missing]) == SealedPool(made, (missing,))


@on_both_databases
def test_content_deleted_from_under_an_upload_is_asked_for_again(store: Store) -> None:
    data = encode_batch(make_batch(1))
    key = BatchKey("pool-1", "a", digest_of(data))
    store.app.orphans.discard([store.blobs.put_bytes(data)])  # by a call that was refused
    with pytest.raises(Unavailable, match=str(key.digest)):
        store.app.pool_records.record_batch(key, BatchTotals(1, 3, 0, LeakageHistograms()))
    assert store.put("a", data) == key.digest


def test_stale_uploads_are_purged_at_the_start_and_by_housekeeping(
    tmp_path: Path, store: Store
) -> None:
    def leave_a_part(of: Store) -> Path:
        of.app.content.staging.append("pool-1/x", UNKNOWN, 0, b"un")
        (part,) = of.uploads_folder.iterdir()
        long_ago = START.timestamp() - 3601
        os.utime(part, (long_ago, long_ago))
        return part

    part = leave_a_part(store)
    again = Store(tmp_path)
    assert not part.exists()
    leave_a_part(again)
    again.app.retention.clean_up()
    assert not part.exists()


def test_the_newest_snapshots_leakage_is_measured(store: Store) -> None:
    snapshot = store.seal(a=store.put("a", make_batch(1)))
    shown = {
        (real, statistic): store.metric(
            "newest_snapshot_psnr_db", run=SPEC.run_id, real=real, statistic=statistic
        )
        for real in ("paired", "nearest")
        for statistic in ("mean", "p99", "max")
    }
    assert shown["paired", "mean"] == snapshot.leakage.paired_mean
    assert shown["nearest", "p99"] == snapshot.leakage.nearest_p99
    assert None not in shown.values()
