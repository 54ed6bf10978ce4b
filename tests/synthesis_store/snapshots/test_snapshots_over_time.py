"""Refreshes one after the other: what is taken over, collected and withdrawn, and what is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import event

from hfmds.domain.digest import Digest
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import Collected, PoolSpec, PoolState, Snapshot, Withdrawal
from hfmds.errors import NotAllowed, NotFound, TooLate, Unavailable, WrongState
from hfmds.event_chain import Event, flaw
from hfmds.storage.blobs import FolderBlobs
from hfmds.storage.database import reading
from hfmds.wire.tensors import read_batch
from tests.synthesis_store.examples import SPEC, Store, joined, make_batch, named, same

on_both_databases = pytest.mark.usefixtures("both_databases")

ACCUMULATE = replace(SPEC, policy=PoolPolicy(refresh="accumulate"))
LARGE = replace(ACCUMULATE, max_samples_per_device=300)


def refresh(
    store: Store, number: int, spec: PoolSpec = SPEC, /, **batches: SyntheticBatch
) -> Snapshot:
    """The snapshot of a refresh of a run in which these devices take part."""
    pool_id = f"{spec.run_id}.{number}"
    store.pools.open(pool_id, replace(spec, round_number=number))
    digests = {device: store.put(device, batch, pool_id) for device, batch in batches.items()}
    return store.seal(pool_id, **digests)


def content(store: Store, snapshot: Snapshot) -> SyntheticBatch:
    paths = [store.blobs.local_path(shard.digest) for shard in snapshot.shards]
    return joined(*(read_batch(path, "shard") for path in paths))


def events(store: Store) -> list[Event]:
    found = store.app.events.list(0, 1000)
    assert flaw(found, store.app.events.log_id) == ""
    return found


def told(store: Store, kind: str) -> list[dict[str, object]]:
    return [json.loads(event.details) for event in events(store) if event.kind == kind]


# --- shards and what is taken over --------------------------------------------------------------


def test_a_large_contribution_is_cut_into_shards_in_order(tmp_path: Path) -> None:
    store = Store(tmp_path)
    batch = make_batch(1, 300)
    snapshot = refresh(store, 1, LARGE, a=batch)
    assert [shard.samples for shard in snapshot.shards] == [128, 128, 44]
    assert same(content(store, snapshot), batch)
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
    assert same(content(store, second), expected)
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
    assert same(content(store, snapshots[3]), expected)
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


def test_with_replace_what_was_there_before_is_counted_and_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = refresh(store, 1, a=make_batch(1))
    second = refresh(store, 2, a=make_batch(1), b=make_batch(2))
    assert (second.samples, second.duplicates, second.repeated_samples) == (6, 0, 3)
    assert (second.carried_samples, second.parent_snapshot_id) == (0, first.snapshot_id)


def test_nothing_is_taken_over_from_other_runs_or_from_a_deleted_one(tmp_path: Path) -> None:
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
def test_a_pool_that_gives_too_much_away_is_halted_and_its_content_erased(tmp_path: Path) -> None:
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
    (event,) = told(store, "pool-halted")
    assert (event["pool"], event["samples"]) == ("pool-1", 6)
    (erased,) = told(store, "content-erased")
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


def test_sealing_that_fails_leaves_nothing_of_what_it_wrote(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.pools.open("pool-1", LARGE)
    a, b = store.put("a", make_batch(1, 300)), store.put("b", make_batch(2))
    store.blobs.delete(b)  # as no crash does it, but a careless operator
    with pytest.raises(Unavailable, match="not sealed yet"):
        store.seal(a=a, b=b)
    assert store.held_bytes() == a.size_bytes


# --- sealing without being told -----------------------------------------------------------------


@on_both_databases
def test_a_pool_seals_itself_when_its_quorum_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.pools.open("pool-1", replace(SPEC, seal_quorum=2))
    a = store.put("a", make_batch(1))
    store.put("a", make_batch(2))  # in place of the first
    store.app.sealing.seal_due()
    assert store.pools.status("pool-1").state is PoolState.OPEN
    b = store.put("b", make_batch(3))
    store.app.sealing.seal_due()
    status = store.pools.status("pool-1")
    assert status.state is PoolState.SEALED
    assert [s.digest for s in store.app.snapshots.get(status.snapshot_id).shards][1] == b
    assert not store.blobs.contains(a)


def test_a_pool_seals_itself_at_its_deadline_or_is_abandoned_if_empty(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for pool_id in ("filled", "empty"):
        store.pools.open(pool_id, replace(SPEC, seal_deadline_seconds=60.0))
    store.put("a", make_batch(1), "filled")
    store.clock.advance(59.9)
    store.app.sealing.seal_due()
    assert store.pools.status("filled").state is PoolState.OPEN
    store.clock.advance(0.1)
    store.app.sealing.seal_due()
    assert store.pools.status("filled").state is PoolState.SEALED
    empty = store.pools.status("empty")
    assert (empty.state, empty.state_reason) == (
        PoolState.ABANDONED,
        "no sample that it accepts was in it at its deadline",
    )
    with pytest.raises(TooLate, match="abandoned"):
        store.put("a", make_batch(1), "empty")
    with pytest.raises(WrongState, match="abandoned"):
        store.app.sealing.seal("empty", named())
    assert [event["pool"] for event in told(store, "pool-abandoned")] == ["empty"]


def test_a_pool_of_which_every_sample_is_dropped_is_abandoned_at_its_deadline(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    policy = PoolPolicy(psnr_paired_max_db=1.0, leakage_action="drop")
    spec = replace(SPEC, policy=policy, seal_quorum=1, seal_deadline_seconds=60.0)
    store.pools.open("pool-1", spec)
    store.put("a", make_batch(1))
    store.app.sealing.seal_due()
    assert store.pools.status("pool-1").state is PoolState.OPEN
    store.clock.advance(60)
    store.app.sealing.seal_due()
    assert store.pools.status("pool-1").state is PoolState.ABANDONED
    assert store.held_bytes() == 0


# --- how long snapshots stay --------------------------------------------------------------------


@on_both_databases
def test_a_run_keeps_its_newest_snapshots_and_those_it_names(tmp_path: Path) -> None:
    store = Store(tmp_path, keep_snapshots=2)
    snapshots = [refresh(store, n, a=make_batch(n)) for n in range(1, 6)]
    ids = [snapshot.snapshot_id for snapshot in snapshots]
    store.pools.open("run-1.6", SPEC, [ids[0]])
    first = Collected(tuple(ids[1:3]), 2, sum(s.size_bytes for s in snapshots[1:3]))
    assert store.app.retention.collect(dry_run=True) == first
    assert store.held_bytes() == sum(s.size_bytes for s in snapshots)
    assert store.app.retention.collect() == first
    assert [s.snapshot_id for s in store.app.snapshots.list(None)] == [ids[4], ids[3], ids[0]]
    assert store.held_bytes() == sum(snapshots[n].size_bytes for n in (0, 3, 4))
    assert store.app.retention.collect() == Collected((), 0, 0)
    store.pools.open("run-1.7", SPEC)  # does not name it any more
    assert store.app.retention.collect().snapshot_ids == (ids[0],)
    with pytest.raises(NotFound, match="collected"):
        store.app.snapshots.get(ids[0])
    assert [e["snapshot"] for e in told(store, "snapshot-collected")] == [ids[1], ids[2], ids[0]]


def test_what_another_snapshot_took_over_stays(tmp_path: Path) -> None:
    store = Store(tmp_path, keep_snapshots=1)
    first = refresh(store, 1, ACCUMULATE, a=make_batch(1))
    second = refresh(store, 2, ACCUMULATE, a=make_batch(2))
    assert store.app.retention.collect() == Collected((first.snapshot_id,), 0, 0)
    assert same(content(store, second), joined(make_batch(1), make_batch(2)))


def test_collecting_a_snapshot_does_not_cost_more_where_there_are_more_of_them(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path, keep_snapshots=1)
    asked: list[str] = []

    @event.listens_for(store.engine, "before_cursor_execute")
    def _note(_: object, __: object, statement: str, *___: object) -> None:
        asked.append(statement)

    def statements(run_id: str) -> list[str]:
        spec = replace(SPEC, run_id=run_id)
        for number in (1, 2):
            refresh(store, number, spec, a=make_batch(len(run_id) + number))
        asked.clear()
        assert len(store.app.retention.collect().snapshot_ids) == 1
        return [*asked]

    first = statements("run")
    for number in range(10):
        refresh(store, 1, replace(SPEC, run_id=f"other-{number}"), a=make_batch(100 + number))
    assert len(statements("the-last-run")) == len(first)
    with reading(store.engine) as session:
        for statement in first:
            if statement.startswith("SELECT DISTINCT shards.sha256"):
                values = ("", *[0] * (statement.count("?") - 1))
                plan = session.connection().exec_driver_sql(
                    f"EXPLAIN QUERY PLAN {statement}", values
                )
                assert not [step for step in plan if step.detail.startswith("SCAN")]
                break
        else:
            raise AssertionError("nobody asked for the content of one snapshot alone")


@on_both_databases
def test_of_a_released_run_nothing_stays_but_the_log(tmp_path: Path) -> None:
    store = Store(tmp_path)
    refresh(store, 1, a=make_batch(1))
    kept = refresh(store, 1, replace(SPEC, run_id="run-2"), a=make_batch(2))
    store.pools.open("run-1.2", SPEC)
    store.put("a", make_batch(3), "run-1.2")
    assert store.app.retention.release("run-1") == 1
    assert store.app.retention.release("run-1") == 0
    assert store.pools.status("run-1.2").state is PoolState.ABANDONED
    assert len(store.app.retention.collect().snapshot_ids) == 1
    assert store.app.snapshots.list(None) == [replace(kept, shards=())]
    assert store.held_bytes() == kept.size_bytes
    for gone in ("run-1.1", "run-1.2"):
        with pytest.raises(NotFound, match="no pool"):
            store.pools.status(gone)
    (event,) = told(store, "run-released")
    assert event == {"by": "store", "run": "run-1", "snapshots": 1}


def test_a_pool_whose_snapshot_was_collected_is_not_opened_or_sealed_anew(tmp_path: Path) -> None:
    store = Store(tmp_path, keep_snapshots=1)
    refresh(store, 1, a=make_batch(1))
    refresh(store, 2, a=make_batch(2))
    store.app.retention.collect()
    store.pools.open("run-1.1", replace(SPEC, round_number=1))
    assert store.pools.status("run-1.1").state is PoolState.SEALED
    with pytest.raises(NotFound, match=r"snapshot of pool run-1\.1 was collected"):
        store.app.sealing.seal("run-1.1", named())
    with pytest.raises(TooLate):
        store.put("a", make_batch(1), "run-1.1")


# --- withdrawal ---------------------------------------------------------------------------------


@on_both_databases
def test_a_withdrawn_device_leaves_open_pools_at_once_and_may_put_no_more(tmp_path: Path) -> None:
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
def test_whoever_opens_a_pool_hears_who_is_withdrawn_from_its_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.pools.open("pool-1", SPEC) == []
    for device_id, run_id in (("b", ""), ("a", SPEC.run_id), ("a", ""), ("c", "run-2")):
        store.app.retention.withdraw(device_id, run_id)
    assert store.pools.open("pool-1", SPEC) == ["a", "b"]
    assert store.pools.open("pool-2", replace(SPEC, run_id="run-2")) == ["a", "b", "c"]


@on_both_databases
def test_a_withdrawn_device_is_in_no_later_snapshot_and_is_erased_with_the_last(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path, keep_snapshots=1)
    first = refresh(store, 1, ACCUMULATE, a=make_batch(1), b=make_batch(2))
    assert store.app.retention.withdraw("a", by="olga") == Withdrawal(0, remaining_snapshots=1)
    assert same(content(store, first), joined(make_batch(1), make_batch(2)))  # as it was
    second = refresh(store, 2, ACCUMULATE, b=make_batch(3))
    assert same(content(store, second), joined(make_batch(2), make_batch(3)))
    assert [event.kind for event in events(store)][-1] == "pool-sealed"
    assert store.app.retention.collect().erased_blobs == 1
    assert store.held_bytes() == second.size_bytes
    contributor = first.shards[0].contributor
    (withdrawn,), (complete,) = told(store, "device-withdrawn"), told(store, "withdrawal-complete")
    assert withdrawn == {"batches": 0, "by": "olga", "contributor": contributor, "run": ""}
    assert complete == {"contributor": contributor, "run": ""}
    assert [event.kind for event in events(store)][-3:] == [
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
def test_a_withdrawal_is_complete_when_what_could_not_be_erased_is(
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
    assert told(store, "withdrawal-complete") == []
    if restarted:
        store = Store(tmp_path)
    else:
        store.app.retention.clean_up()
    assert len(told(store, "withdrawal-complete")) == 1
    assert store.held_bytes() == 0


def test_a_withdrawal_is_not_complete_while_a_batch_that_was_left_out_is_here(
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
    assert told(store, "withdrawal-complete") == []
    blobs.away = False
    store.app.retention.clean_up()
    assert not blobs.contains(b)
    assert len(told(store, "withdrawal-complete")) == 1


def test_a_withdrawal_in_the_middle_of_sealing_is_heeded(tmp_path: Path) -> None:
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
    assert same(content(store, snapshot), joined(make_batch(2), make_batch(3)))


# --- the log ------------------------------------------------------------------------------------


def test_the_log_tells_of_pools_and_of_refusals_in_all_and_never_of_a_devices_name(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    store.pools.open("pool-1", SPEC)
    store.put("device-a", make_batch(1))
    for seed in range(3):
        with pytest.raises(Exception, match="samples"):
            store.put("device-b", make_batch(seed, 9))
    with pytest.raises(NotFound):
        store.put("device-b", make_batch(1), "unknown")
    store.pools.refused_batches.write()
    store.pools.refused_batches.write()
    store.app.retention.withdraw("device-a")
    log = events(store)
    assert [event.kind for event in log] == [
        "pool-opened",
        "batches-refused",
        "device-withdrawn",
        "content-erased",
        "withdrawal-complete",
    ]
    assert told(store, "pool-opened") == [{"pool": "pool-1", "round": 4, "run": "run-1"}]
    assert told(store, "batches-refused") == [{"pool": "pool-1", "reasons": {"limit": 3}}]
    assert not any("device-" in event.details for event in log)
    again = Store(tmp_path)
    assert events(again) == log
