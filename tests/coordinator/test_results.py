"""Results that come together: what one device does is no other's affair."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.devices.lru import Memory
from coordinator.devices.results import Results, Submitted
from coordinator.devices.uploads import Updates
from coordinator.records.acceptance import Acceptance, HandedIn
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.states import TaskState
from coordinator.records.tasks import Task
from coordinator.runs.content import RunContents
from hfmds.domain.digest import digest_of
from hfmds.domain.learning import Evaluation, Traffic
from hfmds.domain.methods import TaskKind
from hfmds.domain.tasks import EvaluationReport
from hfmds.errors import Unavailable

PATIENCE_SECONDS = 60


class Books:
    """Knows every task, and counts what it is told to."""

    def __init__(self) -> None:
        self.together: list[list[str]] = []
        self.go_on = threading.Event()
        self.counting = threading.Event()
        self.breaks: dict[str, Exception] = {}
        self.go_on.set()

    def get_pending(self, device_id: str, task_id: str) -> Task:
        key = SimpleNamespace(kind=task_id.partition("-")[0], run_id="run")
        return cast(Task, SimpleNamespace(key=key, state=TaskState.LEASED, run_uid="run.1"))

    def accept_each(self, results: Sequence[HandedIn], now: float) -> list[Acceptance]:
        devices = [result.device_id for result in results]
        self.together.append(devices)
        self.counting.set()
        assert self.go_on.wait(PATIENCE_SECONDS)
        for device in devices:
            if device in self.breaks:
                raise self.breaks[device]
        return [Acceptance(already=False) for _ in results]


class SlowUpdates:
    """Takes as long to look at an update as it is told to."""

    def __init__(self) -> None:
        self.looking, self.looked = threading.Event(), threading.Event()

    def is_sound(self, *_: object) -> bool:
        return False

    def require_sound(self, *_: object) -> None:
        self.looking.set()
        assert self.looked.wait(PATIENCE_SECONDS)


class Bench:
    def __init__(self) -> None:
        self.books, self.updates = Books(), SlowUpdates()
        self.handed_out = Memory[Task](10)
        self.heard: list[str] = []
        self.results = Results(
            cast(TaskRecords, self.books),
            cast(Updates, self.updates),
            cast(RunContents, None),
            self.handed_out,
            lambda: 0.0,
            lambda task, submitted, acceptance: self.heard.append(submitted.device_id),
        )

    async def accept(self, device_id: str, kind: TaskKind = "evaluate") -> Acceptance:
        report = EvaluationReport(Evaluation(0.5, 1.0, 2), Traffic(), 0.0)
        task_id, result = f"{kind}-{device_id}", digest_of(device_id.encode())
        self.handed_out.put((device_id, task_id), self.books.get_pending(device_id, task_id))
        return await self.results.accept(Submitted(device_id, task_id, kind, result, report))


async def happens(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE_SECONDS)


def run(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, PATIENCE_SECONDS))


def test_nobody_waits_while_the_update_of_another_is_looked_at() -> None:
    async def story() -> None:
        bench = Bench()
        slow = asyncio.create_task(bench.accept("slow", "train"))
        await happens(bench.updates.looking)
        assert await bench.accept("quick") == Acceptance(already=False)
        assert not slow.done()
        bench.updates.looked.set()
        await slow
        assert bench.books.together == [["quick"], ["slow"]]

    run(story())


def test_a_result_is_told_of_even_if_its_device_has_hung_up() -> None:
    async def story() -> None:
        bench = Bench()
        bench.books.go_on.clear()
        gone = asyncio.create_task(bench.accept("gone"))
        await happens(bench.books.counting)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        bench.books.go_on.set()
        await bench.accept("next")  # counted after it
        assert bench.heard == ["gone", "next"]

    run(story())


async def three_together(bench: Bench) -> list[Acceptance | BaseException]:
    bench.books.go_on.clear()
    first = asyncio.create_task(bench.accept("first"))
    await happens(bench.books.counting)
    others = [asyncio.create_task(bench.accept(device)) for device in ("a", "b", "c")]
    await asyncio.sleep(0)  # they have asked
    bench.books.go_on.set()
    await first
    return await asyncio.gather(*others, return_exceptions=True)


def test_whatever_breaks_a_transaction_breaks_it_for_one_device_only() -> None:
    async def story() -> None:
        bench = Bench()
        bench.books.breaks["b"] = fault = ZeroDivisionError()
        fine = Acceptance(already=False)
        assert await three_together(bench) == [fine, fault, fine]
        assert bench.books.together == [["first"], ["a", "b", "c"], ["a"], ["b"], ["c"]]
        assert bench.heard == ["first", "a", "c"]

    run(story())


def test_a_database_that_is_away_is_asked_once() -> None:
    async def story() -> None:
        bench = Bench()
        bench.books.breaks["b"] = away = Unavailable("the database is away")
        assert await three_together(bench) == [away, away, away]
        assert bench.books.together == [["first"], ["a", "b", "c"]]

    run(story())
