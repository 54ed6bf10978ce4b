"""Failing networks, lost answers and repeated calls: each result counts once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hfmds.errors import HfmdsError, WrongState
from hfmds.storage.blobs import CHUNK_BYTES
from tests.support.operator import Outcome
from tests.support.scripted_devices import LARGE_MODEL, Call
from tests.support.small_run import TASKS, stage, undisturbed
from tests.support.supervision import Launcher
from tests.support.tcp_proxy import Proxy, Way
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

SUBMITS = ("submit_update", "submit_synthesis")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return await undisturbed(launcher, tmp_path_factory.mktemp("undisturbed"), LARGE_MODEL)


class Cut:
    """An interceptor that cuts the first call of a kind after a number of bytes."""

    def __init__(self, proxy: Proxy, method: str, after_bytes: int, arriving: Path) -> None:
        """Take `arriving`, the folder at the receiver for incomplete content."""
        self.attempts: list[int] = []  # bytes of each attempt
        self._proxy = proxy
        self._method = method
        self._way: Way = "down" if method == "download" else "up"
        self._after_bytes = after_bytes
        self._arriving = arriving
        self._cutting: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    async def __call__(self, call: Call) -> Any:
        if call.method != self._method or self._over.is_set():
            return await call()
        if self._cutting is None:
            self._proxy.hold_after(self._way, self._after_bytes)
            self._cutting = asyncio.create_task(self._cut())
        before = self._proxy.passed[self._way]
        try:
            answer = await call()
        finally:
            self.attempts.append(self._proxy.passed[self._way] - before)
        self._over.set()
        return answer

    async def go_first(self, call: Call) -> Any:
        """Delay this call of the other device until after the cut."""
        if call.method == self._method:
            await self._over.wait()
        return await call()

    async def _cut(self) -> None:
        """Cut the connection after the receiver has written all chunks."""
        await self._proxy.stuck.wait()
        chunks = self._after_bytes // CHUNK_BYTES
        await eventually(lambda: self._arrived() >= chunks * CHUNK_BYTES)
        self._proxy.cut()

    def _arrived(self) -> int:
        return sum(path.stat().st_size for path in self._arriving.rglob("*.part"))


@pytest.mark.parametrize("method", ["download", "submit_update"])
async def test_a_cut_transfer_resumes(
    launcher: Launcher, tmp_path: Path, expected: Outcome, method: str
) -> None:
    at_device, at_coordinator = tmp_path / "a/cache/partial", tmp_path / "coordinator-data/uploads"
    async with (
        stage(launcher, tmp_path, LARGE_MODEL) as on,
        Proxy(on.coordinator).running() as proxy,
    ):
        arriving = at_device if method == "download" else at_coordinator
        cut = Cut(proxy, method, 5 * CHUNK_BYTES // 2, arriving)
        outcome = await on.outcome(
            on.device("a", cut, coordinator=proxy.address), on.device("b", cut.go_first)
        )
    assert outcome == expected
    first, *others = cut.attempts
    assert first >= 2 * CHUNK_BYTES
    rest = expected.models[0].size_bytes - 2 * CHUNK_BYTES
    assert rest <= sum(others) < rest + CHUNK_BYTES / 2


async def test_a_cut_batch_is_sent_again(
    launcher: Launcher, tmp_path: Path, expected: Outcome
) -> None:
    async with stage(launcher, tmp_path, LARGE_MODEL) as on, Proxy(on.store).running() as proxy:
        cut = Cut(proxy, "put_batch", 10_000, tmp_path)
        outcome = await on.outcome(on.device("a", cut, store=proxy.address), on.device("b"))
    assert outcome == expected
    assert cut.attempts[0] >= 10_000


async def test_a_slow_network_gives_the_same_result(
    launcher: Launcher, tmp_path: Path, expected: Outcome
) -> None:
    async with (
        stage(launcher, tmp_path, LARGE_MODEL) as on,
        Proxy(on.coordinator, delay_seconds=0.005).running() as coordinator,
        Proxy(on.store, delay_seconds=0.02).running() as store,
    ):
        slow = on.device("a", coordinator=coordinator.address, store=store.address)
        assert await on.outcome(slow, on.device("b")) == expected


async def test_a_result_with_a_lost_receipt_counts_once(launcher: Launcher, tmp_path: Path) -> None:
    # A small model: without an answer, a device sends at most one window of HTTP/2.
    for name in ("undisturbed", "disturbed"):
        (tmp_path / name).mkdir()
    expected = await undisturbed(launcher, tmp_path / "undisturbed")
    already: list[bool] = []
    lost: set[str] = set()  # tasks with a lost receipt
    async with (
        stage(launcher, tmp_path / "disturbed") as on,
        Proxy(on.coordinator).running() as proxy,
    ):

        async def accepted() -> int:
            devices = await on.operator.devices()
            return {device.device_id: device.accepted_tasks for device in devices}["a"]

        async def cut_when_counted(more_than: int) -> None:
            async def counted() -> bool:
                return await accepted() > more_than

            await eventually(counted)
            proxy.cut()

        async def lose_first_receipt(call: Call) -> Any:
            proxy.losing = "down"
            cutting = asyncio.create_task(cut_when_counted(await accepted()))
            try:
                return await call()  # gRPC may repeat the call
            finally:
                await cutting

        async def lose_receipts(call: Call) -> Any:
            if call.method not in SUBMITS:
                return await call()
            if call.args[0] in lost:
                answer = await call()
            else:
                lost.add(call.args[0])
                answer = await lose_first_receipt(call)
            already.append(answer)
            return answer

        outcome = await on.outcome(
            on.device("a", lose_receipts, coordinator=proxy.address),
            on.device("b"),
            until=lambda: len(already) == TASKS,
        )
        assert await accepted() == TASKS
    assert outcome == expected
    assert already == [True] * TASKS  # each result counted before its answer


async def test_repeated_and_concurrent_calls_of_a_device_count_once(
    launcher: Launcher, tmp_path: Path, expected: Outcome
) -> None:
    receipts: dict[str, list[int]] = {method: [] for method in SUBMITS}

    async def send_again(call: Call) -> Any:
        if call.method not in (*SUBMITS, "put_batch"):
            return await call()
        ends = await asyncio.gather(call(), call(), return_exceptions=True)
        for end in ends:
            # One of two concurrent uploads may learn that the other is ahead. gRPC may lose
            # this answer while a caller sends. The device then restarts the upload.
            assert isinstance(end, int | WrongState) or type(end) is HfmdsError, end
        last = await call()
        if call.method in SUBMITS:
            receipts[call.method].append([*ends, last].count(False))
            assert await call()
        else:
            assert await call() == 0  # the upload is complete
        return last

    async with stage(launcher, tmp_path, LARGE_MODEL) as on:
        outcome = await on.outcome(
            on.device("a", send_again),
            on.device("b", send_again),
            until=lambda: sum(map(len, receipts.values())) == 2 * TASKS,
        )
        counted = [device.accepted_tasks for device in await on.operator.devices()]
        accepted = await on.operator.accepted()
    assert outcome == expected
    # Exactly one answer about each task reports a new result.
    assert receipts == {"submit_update": [1] * TASKS, "submit_synthesis": [1] * TASKS}
    assert counted == [TASKS] * 2
    every_result = [(number, name) for number in (1, 2, 3) for name in ("a", "a", "b", "b")]
    assert sorted(accepted) == every_result  # the log agrees
