"""How long snapshots stay, and what their collection removes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from hfmds.domain.pools import Collected, PoolState
from hfmds.errors import NotFound, TooLate
from hfmds.storage.database import read_session
from tests.synthesis_store.examples import (
    ACCUMULATE,
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
    store.pools.open("run-1.7", SPEC)  # no longer names it
    assert store.app.retention.collect().snapshot_ids == (ids[0],)
    with pytest.raises(NotFound, match="collected"):
        store.app.snapshots.get(ids[0])
    assert [e["snapshot"] for e in details_of(store, "snapshot-collected")] == [
        ids[1],
        ids[2],
        ids[0],
    ]


def test_shards_that_a_later_snapshot_carried_over_stay(tmp_path: Path) -> None:
    store = Store(tmp_path, keep_snapshots=1)
    first = refresh(store, 1, ACCUMULATE, a=make_batch(1))
    second = refresh(store, 2, ACCUMULATE, a=make_batch(2))
    assert store.app.retention.collect() == Collected((first.snapshot_id,), 0, 0)
    assert same(content_of(store, second), joined(make_batch(1), make_batch(2)))


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
    with read_session(store.engine) as session:
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
def test_only_the_log_remains_of_a_released_run(tmp_path: Path) -> None:
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
    (event,) = details_of(store, "run-released")
    assert event == {"by": "store", "run": "run-1", "snapshots": 1}


def test_a_pool_of_a_collected_snapshot_cannot_be_opened_or_sealed_again(
    tmp_path: Path,
) -> None:
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
