"""Networks that fail, answers that are lost, devices that repeat themselves: all counts once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hfmds.errors import HfmdsError, WrongState
from hfmds.storage.blobs import CHUNK_BYTES
from tests.support.operator import Outcome
from tests.support.scripted_devices import LARGE_MODEL, Call, in_two_calls
from tests.support.small_run import TASKS, Stage, stage, undisturbed
from tests.support.supervision import Launcher
from tests.support.tcp_proxy import Proxy, Way
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

SUBMITS = ("submit_update", "submit_synthesis")
UPLOADS = ("upload_update", "put_batch")


@pytest.fixture(scope="module")
def expected(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return undisturbed(launcher, tmp_path_factory.mktemp("undisturbed"), LARGE_MODEL)


def play(launcher: Launcher, folder: Path, act: Callable[[Stage], Awaitable[Outcome]]) -> Outcome:
    """The run of a large model, as the test acts it."""

    async def acted() -> Outcome:
        async with stage(launcher, folder, LARGE_MODEL) as on:
            return await act(on)

    return asyncio.run(acted())


class Cut:
    """A meddler that cuts the first call of a kind after so many bytes."""

    def __init__(self, proxy: Proxy, method: str, after_bytes: int, arriving: Path) -> None:
        """`arriving` is the folder at the other end where what comes is kept meanwhile."""
        self.attempts: list[int] = []  # bytes that passed by each, until the call was made
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
        """The meddler of another device, which is to keep out of the way."""
        if call.method == self._method:
            await self._over.wait()
        return await call()

    async def _cut(self) -> None:
        """Cut the connection when the receiver has written all chunks that passed."""
        await self._proxy.stuck.wait()
        chunks = self._after_bytes // CHUNK_BYTES
        await eventually(lambda: self._arrived() >= chunks * CHUNK_BYTES)
        self._proxy.cut()

    def _arrived(self) -> int:
        return sum(path.stat().st_size for path in self._arriving.rglob("*.part"))


@pytest.mark.parametrize("method", ["download", "upload_update"])
def test_a_transfer_that_is_cut_goes_on_where_it_was(
    launcher: Launcher, tmp_path: Path, expected: Outcome, method: str
) -> None:
    at_device, at_coordinator = tmp_path / "a/cache/partial", tmp_path / "coordinator-data/uploads"
    cuts = []

    async def act(on: Stage) -> Outcome:
        async with Proxy(on.coordinator).running() as proxy:
            arriving = at_device if method == "download" else at_coordinator
            cut = Cut(proxy, method, 5 * CHUNK_BYTES // 2, arriving)
            cuts.append(cut)
            return await on.outcome(
                on.device("a", cut, coordinator=proxy.address), on.device("b", cut.go_first)
            )

    assert play(launcher, tmp_path, act) == expected
    first, *others = cuts[0].attempts
    assert first >= 2 * CHUNK_BYTES
    rest = expected.models[0].size_bytes - 2 * CHUNK_BYTES
    assert rest <= sum(others) < rest + CHUNK_BYTES / 2


def test_a_batch_that_is_cut_is_sent_again(
    launcher: Launcher, tmp_path: Path, expected: Outcome
) -> None:
    cuts = []

    async def act(on: Stage) -> Outcome:
        async with Proxy(on.store).running() as proxy:
            cuts.append(Cut(proxy, "put_batch", 10_000, tmp_path))
            return await on.outcome(on.device("a", cuts[0], store=proxy.address), on.device("b"))

    assert play(launcher, tmp_path, act) == expected
    assert cuts[0].attempts[0] >= 10_000


def test_a_slow_network_only_takes_time(
    launcher: Launcher, tmp_path: Path, expected: Outcome
) -> None:
    async def act(on: Stage) -> Outcome:
        async with (
            Proxy(on.coordinator, delay_seconds=0.005).running() as coordinator,
            Proxy(on.store, delay_seconds=0.02).running() as store,
        ):
            slow = on.device("a", coordinator=coordinator.address, store=store.address)
            return await on.outcome(slow, on.device("b"))

    assert play(launcher, tmp_path, act) == expected


def test_a_result_whose_receipt_is_lost_counts_once(
    launcher: Launcher, tmp_path: Path, expected: Outcome
) -> None:
    answers: list[bool] = []

    async def act(on: Stage) -> Outcome:
        async with Proxy(on.coordinator).running() as proxy:

            async def cut_when_counted(tasks: int) -> None:
                await on.operator.until_seen("a", lambda device: device.accepted_tasks == tasks)
                proxy.cut()

            async def lose_receipts(call: Call) -> Any:
                if call.method not in SUBMITS:
                    return await in_two_calls(call)()
                proxy.losing = "down"
                cutting = asyncio.create_task(cut_when_counted(len(answers) + 1))
                answers.append(await call())
                await cutting
                return answers[-1]

            return await on.outcome(
                on.device("a", lose_receipts, coordinator=proxy.address),
                on.device("b"),
                until=lambda: len(answers) == TASKS,
            )

    assert play(launcher, tmp_path, act) == expected
    assert answers == [True] * TASKS  # had been accepted before


def test_an_update_handed_in_with_its_upload_whose_receipt_is_lost_counts_once(
    launcher: Launcher, tmp_path: Path
) -> None:
    # Of a small model: without an answer, no more goes up than a window of HTTP/2.
    for name in ("undisturbed", "disturbed"):
        (tmp_path / name).mkdir()
    expected = undisturbed(launcher, tmp_path / "undisturbed")
    counted: list[int] = []
    already: list[bool] = []
    lost: set[str] = set()  # tasks whose first receipt was

    async def act(on: Stage) -> Outcome:
        async with Proxy(on.coordinator).running() as proxy:

            async def accepted() -> int:
                devices = await on.operator.devices()
                return {device.device_id: device.accepted_tasks for device in devices}["a"]

            async def cut_when_counted(more_than: int) -> None:
                async def counted() -> bool:
                    return await accepted() > more_than

                await eventually(counted)
                proxy.cut()

            async def lose_receipts(call: Call) -> Any:
                if call.method != "upload_update" or call.args[0] in lost:
                    answer = await call()
                    if call.method == "submit_update":
                        already.append(answer)
                    return answer
                lost.add(call.args[0])
                proxy.losing = "down"
                cutting = asyncio.create_task(cut_when_counted(await accepted()))
                try:
                    return await call()
                finally:
                    await cutting

            outcome = await on.outcome(
                on.device("a", lose_receipts, coordinator=proxy.address),
                on.device("b"),
                until=lambda: len(already) == TASKS // 2,
            )
            counted.append(await accepted())
            return outcome

    async def acted() -> Outcome:
        async with stage(launcher, tmp_path / "disturbed") as on:
            return await act(on)

    assert asyncio.run(acted()) == expected
    assert already == [True] * (TASKS // 2)  # each update was counted before its device heard of it
    assert counted == [TASKS]


def in_one_call(call: Call) -> Call:
    """The call as devices make it: an update is handed in with its upload."""
    return call


@pytest.mark.parametrize(
    ("sent", "receipts_of_updates"),
    [(in_two_calls, (False, True, True)), (in_one_call, (True, True, True))],
    ids=["in two calls", "in one call"],
)
def test_a_device_that_sends_everything_again_and_at_once_counts_once(
    launcher: Launcher,
    tmp_path: Path,
    expected: Outcome,
    sent: Callable[[Call], Call],
    receipts_of_updates: tuple[bool, ...],
) -> None:
    receipts: dict[str, list[tuple[bool, ...]]] = {method: [] for method in SUBMITS}
    counted: list[int] = []
    accepted: list[tuple[int, str]] = []

    async def send_again(call: Call) -> Any:
        call = sent(call)
        if call.method in UPLOADS:
            for end in await asyncio.gather(call(), call(), return_exceptions=True):
                # Of two at once one may be told that the other is further, in words that do not
                # always reach a caller who is still sending. Devices begin anew then.
                assert isinstance(end, int | WrongState) or type(end) is HfmdsError, end
            sent_bytes = await call()
            assert await call() == 0  # it is all there
            return sent_bytes
        if call.method in SUBMITS:
            ends = (*sorted(await asyncio.gather(call(), call())), await call())
            receipts[call.method].append(ends)
        return await call()

    async def act(on: Stage) -> Outcome:
        outcome = await on.outcome(
            on.device("a", send_again),
            on.device("b", send_again),
            until=lambda: sum(map(len, receipts.values())) == 2 * TASKS,
        )
        counted.extend(device.accepted_tasks for device in await on.operator.devices())
        accepted.extend(await on.operator.accepted())
        return outcome

    assert play(launcher, tmp_path, act) == expected
    # Whether it had been accepted before, as it has with an upload that hands it in.
    assert receipts == {
        "submit_update": [receipts_of_updates] * TASKS,
        "submit_synthesis": [(False, True, True)] * TASKS,
    }
    assert counted == [TASKS] * 2
    every_result = [(number, name) for number in (1, 2, 3) for name in ("a", "a", "b", "b")]
    assert sorted(accepted) == every_result  # by the log, too
