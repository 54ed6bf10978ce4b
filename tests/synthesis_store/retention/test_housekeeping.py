"""The store's own work: it goes on after any error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from hfmds.domain.pools import PoolState
from hfmds.errors import LimitExceeded
from hfmds.storage.database import write_session
from synthesis_store.pools.pool_records import require_pool
from synthesis_store.retention.housekeeping import Housekeeper
from synthesis_store.settings import StoreSettings
from tests.support.waiting import eventually
from tests.synthesis_store.examples import SPEC, Store, make_batch


async def work(store: Store, until: Callable[[], bool], collect_every_seconds: float = 0.0) -> None:
    """Let the housekeeper work until something is true."""
    settings = StoreSettings(
        look_every_seconds=0.001,
        collect_every_seconds=collect_every_seconds,
        orphan_grace_seconds=0.001,
    )
    housekeeper = Housekeeper(store.app.sealing, store.pools, store.app.retention, settings)
    working = asyncio.create_task(housekeeper.work())
    await eventually(lambda: working.done() or until())
    assert not working.done()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_pools_are_sealed_refusals_written_and_snapshots_collected(store: Store) -> None:
    released = store.seal(a=store.put("a", make_batch(1)))
    store.pools.open("pool-2", replace(SPEC, run_id="run-2", seal_quorum=1))
    with pytest.raises(LimitExceeded):
        store.put("a", make_batch(1, 9), "pool-2")
    store.put("a", make_batch(2), "pool-2")
    await work(store, lambda: store.pools.status("pool-2").state is PoolState.SEALED)
    await work(store, lambda: store.app.events.list(0, 100)[-1].kind == "batches-refused")
    store.app.retention.release("run-1")
    shard = released.shards[0].digest
    await work(store, lambda: not store.blobs.contains(shard), collect_every_seconds=0.001)
    assert store.app.snapshots.list("run-1") == []
    assert len(store.app.snapshots.list("run-2")) == 1


async def test_orphans_are_deleted_where_operators_collect_snapshots_by_hand(
    store: Store,
) -> None:
    snapshot = store.seal(a=store.put("a", make_batch(1)))
    store.app.retention.release("run-1")
    orphan = store.blobs.put_bytes(b"of an upload that went no further")
    await work(store, lambda: store.orphans() == 1)
    store.clock.advance(25 * 3600)
    await work(store, lambda: not store.blobs.contains(orphan))
    assert store.blobs.contains(snapshot.shards[0].digest)


async def test_a_pool_that_cannot_be_sealed_now_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    for pool_id, seed in (("broken", 1), ("sound", 2)):
        store.pools.open(pool_id, replace(SPEC, run_id=pool_id, seal_quorum=1))
        digest = store.put("a", make_batch(seed), pool_id)
        if pool_id == "broken":
            store.blobs.delete(digest)
    await work(store, lambda: store.pools.status("sound").state is PoolState.SEALED)
    assert store.pools.status("broken").state is PoolState.OPEN
    assert "pool broken" in caplog.text


async def test_a_record_that_cannot_be_read_holds_up_no_other_pool(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    for pool_id, seed in (("broken", 1), ("sound", 2)):
        store.pools.open(pool_id, replace(SPEC, run_id=pool_id, seal_quorum=1))
        store.put("a", make_batch(seed), pool_id)
    with write_session(store.engine) as session:
        require_pool(session, "broken").spec = b"\xff"
    await work(store, lambda: store.pools.status("sound").state is PoolState.SEALED)
    assert "pool broken" in caplog.text


async def test_an_unforeseen_error_does_not_end_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    with store.engine.begin() as connection:
        connection.execute(text("ALTER TABLE pools RENAME TO pools_gone"))
    await work(store, lambda: caplog.text.count("sealing failed") > 1)
