"""What the store does without being asked, and goes on doing after an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from hfmds.domain.digest import digest_of
from hfmds.domain.pools import PoolState
from hfmds.errors import LimitExceeded
from hfmds.storage.database import transaction
from synthesis_store.pools.pool_records import require_pool
from synthesis_store.retention.housekeeping import Caretaker
from tests.synthesis_store.examples import SPEC, Store, make_batch


def tend(store: Store, until: Callable[[], bool], collect_every_seconds: float = 0.0) -> None:
    """Let the caretaker look again and again until something is true."""

    async def looked() -> None:
        caretaker = Caretaker(store.pools, 0.001, collect_every_seconds)
        tending = asyncio.create_task(caretaker.tend())
        while not until():
            assert not tending.done()
            await asyncio.sleep(0.001)
        tending.cancel()

    asyncio.run(looked())


def test_pools_are_sealed_refusals_noted_and_snapshots_collected(store: Store) -> None:
    released = store.seal(a=store.put("a", make_batch(1)))
    store.pools.open("pool-2", replace(SPEC, run_id="run-2", seal_quorum=1))
    with pytest.raises(LimitExceeded):
        store.put("a", make_batch(1, 9), "pool-2")
    store.put("a", make_batch(2), "pool-2")
    tend(store, lambda: store.pools.status("pool-2").state is PoolState.SEALED)
    tend(store, lambda: store.pools.events.list(0, 100)[-1].kind == "batches-refused")
    store.pools.release("run-1")
    tend(store, lambda: not store.pools.snapshots("run-1"), collect_every_seconds=0.001)
    assert not store.blobs.contains(released.shards[0].digest)
    assert len(store.pools.snapshots("run-2")) == 1


def test_what_is_left_over_is_cleared_away_though_snapshots_are_collected_by_hand(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synthesis_store.retention.housekeeping._CLEAR_EVERY_SECONDS", 0.001)
    snapshot = store.seal(a=store.put("a", make_batch(1)))
    store.pools.release("run-1")
    broken = digest_of(b"of an upload that went no further")
    store.pools.contents.expect(broken)
    store.blobs.put_bytes(b"of an upload that went no further")
    store.clock.advance(25 * 3600)
    tend(store, lambda: not store.blobs.contains(broken), collect_every_seconds=0.0)
    assert store.blobs.contains(snapshot.shards[0].digest)


def test_a_pool_that_cannot_be_sealed_now_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    for pool_id, seed in (("broken", 1), ("whole", 2)):
        store.pools.open(pool_id, replace(SPEC, run_id=pool_id, seal_quorum=1))
        digest = store.put("a", make_batch(seed), pool_id)
        if pool_id == "broken":
            store.blobs.delete(digest)
    tend(store, lambda: store.pools.status("whole").state is PoolState.SEALED)
    assert store.pools.status("broken").state is PoolState.OPEN
    assert "pool broken is not sealed yet" in caplog.text


def test_a_record_that_cannot_be_read_holds_up_no_other_pool(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    for pool_id, seed in (("broken", 1), ("whole", 2)):
        store.pools.open(pool_id, replace(SPEC, run_id=pool_id, seal_quorum=1))
        store.put("a", make_batch(seed), pool_id)
    with transaction(store.engine) as session:
        require_pool(session, "broken").spec = b"\xff"
    tend(store, lambda: store.pools.status("whole").state is PoolState.SEALED)
    assert "pool broken is not sealed yet" in caplog.text


def test_an_error_that_nobody_foresaw_does_not_end_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    with store.engine.begin() as connection:
        connection.execute(text("ALTER TABLE pools RENAME TO pools_gone"))
    tend(store, lambda: caplog.text.count("sealing failed, and is tried again") > 1)
