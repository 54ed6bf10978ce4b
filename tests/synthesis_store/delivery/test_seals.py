"""Seals run one after the other, with or without their callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import cast

import pytest

from hfmds.domain.digest import digest_of
from hfmds.domain.pools import Contribution
from hfmds.errors import Unavailable
from synthesis_store.delivery.snapshots import Snapshots
from synthesis_store.snapshots.sealing import Sealing
from synthesis_store.snapshots.snapshot_records import SealedPool
from tests.synthesis_store.examples import Store

NAMED = [Contribution("a", digest_of(b"a")), Contribution("b", digest_of(b"b"))]


class SlowSealing(Sealing):
    """Seals when the test lets it, and raises the error that the test sets."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.began = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.error: Exception | None = None

    def seal(self, pool_id: str, named: Iterable[Contribution]) -> SealedPool:
        self.calls.append(pool_id)
        self.began.release()
        assert self.go_on.acquire(timeout=60)
        if self.error:
            raise self.error
        return cast(SealedPool, (pool_id, frozenset(named)))

    def stop(self) -> None:
        """There is nothing to give up."""


def snapshots_over(store: Store, sealing: Sealing) -> Snapshots:
    """Return the snapshots of the store, sealed in another way."""
    return Snapshots(store.app.snapshot_records, store.blobs, sealing)


async def test_a_caller_that_asks_again_joins_the_seal_under_way(store: Store) -> None:
    slow = SlowSealing()
    snapshots = snapshots_over(store, slow)
    first = asyncio.create_task(snapshots.seal("pool", NAMED))
    await asyncio.to_thread(slow.began.acquire)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    # More than there are threads for other calls, none of which may wait here.
    again = [asyncio.create_task(snapshots.seal("pool", reversed(NAMED))) for _ in range(100)]
    await asyncio.sleep(0)
    assert await asyncio.to_thread(lambda: "answered") == "answered"
    slow.go_on.release()
    assert set(await asyncio.gather(*again)) == {("pool", frozenset(NAMED))}
    assert slow.calls == ["pool"]


async def test_a_seal_goes_on_without_its_caller(store: Store) -> None:
    slow = SlowSealing()
    snapshots = snapshots_over(store, slow)
    gone = asyncio.create_task(snapshots.seal("pool", NAMED))
    await asyncio.to_thread(slow.began.acquire)
    gone.cancel()
    slow.go_on.release(2)
    await snapshots.seal("another", NAMED)  # behind the first
    assert slow.calls == ["pool", "another"]


async def test_a_failed_seal_is_tried_again(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowSealing()
    snapshots, slow.error = snapshots_over(store, slow), Unavailable("storage is away")
    slow.go_on.release(2)
    with pytest.raises(Unavailable):
        await snapshots.seal("pool", NAMED)
    slow.error = None
    await snapshots.seal("pool", NAMED)
    assert slow.calls == ["pool", "pool"]
    assert "pool pool is not sealed: storage is away" in caplog.text


async def test_close_starts_no_waiting_seal_and_waits_for_the_one_under_way(store: Store) -> None:
    slow = SlowSealing()
    snapshots = snapshots_over(store, slow)
    first = asyncio.create_task(snapshots.seal("pool", NAMED))
    await asyncio.to_thread(slow.began.acquire)
    queued = asyncio.create_task(snapshots.seal("another", NAMED))
    await asyncio.sleep(0)
    closing = asyncio.create_task(snapshots.close())
    with pytest.raises(asyncio.CancelledError):
        await queued
    assert not closing.done()
    slow.go_on.release()
    await closing
    assert first.done()
    assert slow.calls == ["pool"]
