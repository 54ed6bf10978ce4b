"""A store that is killed at any commit and started again reaches the same state.

The scenario consists of calls, which are repeated until the store answers. The store takes,
refuses and loses batches; it seals, halts and abandons pools; it withdraws a device, releases a
run and collects snapshots.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hfmds.domain.digest import Digest
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import PoolSpec, PoolState
from hfmds.errors import InvalidInput, NotFound, WrongState
from hfmds.event_chain import flaw
from hfmds.storage.blobs import FolderBlobs
from hfmds.wire.clients.store_client import StoreClient
from hfmds.wire.tensors import encode_batch
from tests.kills.crash_points import OF_THE_STORE_ALONE, CrashPoint, Journal, Moment, around
from tests.support.scripted_devices import peer, retrying
from tests.support.supervision import Launcher, Supervised
from tests.support.waiting import eventually
from tests.synthesis_store.examples import SPEC, joined, make_batch, named

pytestmark = pytest.mark.integration

SECONDS = 60.0
ACCUMULATE = replace(SPEC, run_id="run", policy=PoolPolicy(refresh="accumulate"))
OTHER = replace(SPEC, run_id="other")

# Their numbers depend on where the store is killed.
VARYING = {"batches-refused", "content-erased"}

ALSO_OF_RUNS = [
    "Orphans.delete",
    "PoolRecords.open",
    "PoolRecords.record_batch",
    "SnapshotRecords.record",
    "SnapshotRetention.release",
]
"""Runs also pass through these, but no run does everything that a pool can do."""


@dataclass(frozen=True)
class Outcome:
    """The state of the store at the end."""

    snapshots: tuple[tuple[str, int, tuple[Digest, ...]], ...]
    states: tuple[PoolState | None, ...]
    content: frozenset[str]
    events: Counter[str]


class Scenario:
    """The calls of the scenario, to a store at an address."""

    def __init__(self, folder: Path, address: str) -> None:
        self._blobs = FolderBlobs(folder / "device")
        self._stored = folder / "data" / "blobs"
        self._client = StoreClient(peer("synthesis store", address))

    async def execute(self) -> Outcome:
        await self._refresh("one", ACCUMULATE, a=1, b=2)
        # b is in the pool and in the snapshot before it, and must be in neither of the next.
        await self._open("two", ACCUMULATE)
        await self._put("two", b=3)
        await self._call(self._client.withdraw_device, "b")
        await self._seal("two", **await self._put("two", a=4, c=5))
        await self._refused()
        await self._halted()
        await self._open("empty", replace(SPEC, run_id="run", seal_deadline_seconds=0.01))
        await self._until(lambda: self._is("empty", PoolState.ABANDONED))
        await self._refresh("three", OTHER, a=6)
        await self._lost()
        await self._open("four", OTHER)
        await self._put("four", a=7)
        await self._call(self._client.release_run, "other")
        await self._call(self._client.collect_snapshots)
        await self._until(self._refusals_are_noted)
        return await self._outcome()

    async def _refused(self) -> None:
        policy = PoolPolicy(psnr_paired_max_db=1.0, leakage_action="refuse")
        await self._open("strict", replace(SPEC, run_id="run", policy=policy))
        # At once, so that one may give up what the other one is about to put, or has found there.
        same = [self._put("strict", **{device_id: 8}) for device_id in ("a", "c")]
        for refused in await asyncio.gather(*same, return_exceptions=True):
            assert isinstance(refused, InvalidInput)
            assert "psnr_paired" in str(refused)

    async def _halted(self) -> None:
        policy = PoolPolicy(halt_psnr_paired_p99_db=1.0)
        await self._open("halted", replace(SPEC, run_id="run", policy=policy))
        # Of what c has, something is left out, and the rest written anew: it must not stay.
        batches = await self._put("halted", a=(9, 10), c=(10, 11))
        with pytest.raises(WrongState, match="halted"):
            await self._seal("halted", **batches)

    async def _lost(self) -> None:
        await self._open("lost", OTHER)
        batches = await self._put("lost", a=12, c=13)
        (self._stored / batches["a"].sha256).unlink()
        sealed, missing = await self._call(self._client.seal_pool, "lost", named(**batches))
        assert sealed.samples == 3  # of c
        assert missing == tuple(named(a=batches["a"]))

    async def _refusals_are_noted(self) -> bool:
        _, events = await self._call(self._client.list_events)
        noted = any(event.kind == "batches-refused" for event in events)
        if not noted and self.was_killed():
            await self._refused()  # again: those that were in memory only when it died are lost
        return noted

    was_killed: Callable[[], bool] = staticmethod(lambda: False)

    async def _outcome(self) -> Outcome:
        snapshots = []
        for listed in await self._call(self._client.list_snapshots):
            snapshot = await self._call(self._client.get_snapshot, listed.snapshot_id)
            shards = tuple(shard.digest for shard in snapshot.shards)
            snapshots.append((snapshot.snapshot_id, snapshot.samples, shards))
        needed = {digest.sha256 for _, _, shards in snapshots for digest in shards}
        # What a kill left behind, the store deletes after the grace time.
        await eventually(lambda: self._content() <= needed, SECONDS)
        pools = ("one", "two", "strict", "halted", "empty", "three", "four")
        states = [await self._state(pool_id) for pool_id in pools]
        log_id, events = await self._call(self._client.list_events)
        assert flaw(events, log_id) == ""
        return Outcome(
            tuple(snapshots),
            tuple(states),
            self._content(),
            Counter(event.kind for event in events if event.kind not in VARYING),
        )

    def _content(self) -> frozenset[str]:
        return frozenset(file.name for file in self._stored.iterdir() if file.is_file())

    # --- steps ----------------------------------------------------------------------------------

    async def _refresh(self, pool_id: str, spec: PoolSpec, /, **seeds: int) -> None:
        await self._open(pool_id, spec)
        await self._seal(pool_id, **await self._put(pool_id, **seeds))

    async def _open(self, pool_id: str, spec: PoolSpec) -> None:
        await self._call(self._client.open_pool, pool_id, spec)

    async def _put(self, pool_id: str, /, **seeds: int | tuple[int, ...]) -> dict[str, Digest]:
        batches = {}
        for device_id, some in seeds.items():
            parts = map(make_batch, some if isinstance(some, tuple) else (some,))
            batch = self._blobs.put_bytes(encode_batch(joined(*parts)))
            await self._call(self._client.put_batch, pool_id, device_id, batch, self._blobs)
            batches[device_id] = batch
        return batches

    async def _seal(self, pool_id: str, /, **batches: Digest) -> None:
        _, missing = await self._call(self._client.seal_pool, pool_id, named(**batches))
        assert missing == ()

    async def _state(self, pool_id: str) -> PoolState | None:
        try:
            return (await self._call(self._client.get_pool, pool_id)).state
        except NotFound:
            return None

    async def _is(self, pool_id: str, state: PoolState) -> bool:
        return await self._state(pool_id) is state

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        await eventually(condition, SECONDS)

    async def _call(self, call: Callable[..., Awaitable[Any]], *args: object) -> Any:
        return await retrying("store").call(call, *args)


async def execute(
    launcher: Launcher, folder: Path, points: Sequence[CrashPoint]
) -> tuple[Outcome, Supervised]:
    """Run the scenario with a fresh store, and kill it at the points in turn."""
    store = Supervised(
        launcher,
        "synthesis_store",
        folder,
        points,
        data_dir=str(folder / "data"),
        listen="127.0.0.1:0",
        keep_snapshots="1",
        look_every_seconds="0.05",
        orphan_grace_seconds="0.1",
    )
    async with asyncio.timeout(SECONDS), store.running():
        scenario = Scenario(folder, store.address)
        scenario.was_killed = lambda: store.journal.killed  # type: ignore[method-assign]
        return await scenario.execute(), store


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Outcome, Journal]]:
    with closing(Launcher()) as launcher:
        outcome, store = await execute(launcher, tmp_path_factory.mktemp("undisturbed"), ())
        yield outcome, store.journal


def test_the_scenario_does_what_its_docstring_says(undisturbed: tuple[Outcome, Journal]) -> None:
    outcome, journal = undisturbed
    ((_, samples, shards),) = outcome.snapshots
    assert (samples, len(shards)) == (9, 3)  # of a at one, and of a and c at two
    assert {digest.sha256 for digest in shards} == outcome.content
    assert outcome.states == (
        PoolState.SEALED,
        PoolState.SEALED,
        PoolState.OPEN,
        PoolState.HALTED,
        PoolState.ABANDONED,
        None,
        None,
    )
    assert outcome.events["withdrawal-complete"] == 1
    assert {*OF_THE_STORE_ALONE, *ALSO_OF_RUNS} <= set(journal.done)


@pytest.mark.parametrize("transition", ["Orphans.discard", "Orphans.sweep"])
@pytest.mark.parametrize("occurrence", [1, 2])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_while_content_is_deleted_the_store_keeps_none_of_it(
    launcher: Launcher,
    undisturbed: tuple[Outcome, Journal],
    tmp_path: Path,
    transition: str,
    occurrence: int,
    moment: Moment,
) -> None:
    expected, journal = undisturbed
    assert journal.done.count(transition) >= 2  # of a refused batch, and of a shard
    point = CrashPoint(transition, occurrence, moment)
    outcome, store = await execute(launcher, tmp_path, [point])
    assert store.deaths == 1, f"{point} was not reached"
    assert outcome == expected, point


@pytest.mark.matrix(one_in=3)
@pytest.mark.parametrize(
    "transition",
    sorted({*OF_THE_STORE_ALONE, *ALSO_OF_RUNS} - {"Orphans.discard", "Orphans.sweep"}),
)
async def test_killed_at_a_commit_the_store_comes_to_the_same(
    launcher: Launcher,
    undisturbed: tuple[Outcome, Journal],
    tmp_path: Path,
    transition: str,
) -> None:
    expected, journal = undisturbed
    times = journal.done.count(transition)
    points = around(transition, (times + 1) // 2)
    outcome, store = await execute(launcher, tmp_path, points)
    assert store.deaths == len(points), f"not all of {points} were reached"
    assert outcome == expected, points
