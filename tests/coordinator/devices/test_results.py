"""Results that arrive together do not affect each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from coordinator.devices.registry import Registry
from coordinator.devices.results import Results, Submission
from coordinator.monitoring.metrics import Metrics
from coordinator.records.acceptance import Acceptance, HandedIn
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.states import TaskState
from coordinator.records.tasks import Task
from coordinator.replicas.notices import Notices, Topic
from hfmds.domain.digest import digest_of
from hfmds.domain.learning import Evaluation, Traffic
from hfmds.domain.tasks import EvaluationReport
from hfmds.errors import Unavailable

PATIENCE_SECONDS = 60


class Books:
    """Task records that know every task and count every result."""

    def __init__(self) -> None:
        self.together: list[list[str]] = []
        self.asked = 0
        self.go_on = threading.Event()
        self.counting = threading.Event()
        self.breaks: dict[str, Exception] = {}
        self.go_on.set()

    def get_pending(self, device_id: str, task_id: str) -> Task:
        self.asked += 1
        key = SimpleNamespace(kind="evaluate", run_id=f"run-of-{device_id}", round_number=1)
        task = SimpleNamespace(
            key=key, state=TaskState.LEASED, task_id=task_id, device_id=device_id
        )
        return cast(Task, task)

    def accept_each(self, results: Sequence[HandedIn], now: float) -> list[Acceptance]:
        devices = [result.device_id for result in results]
        self.together.append(devices)
        self.counting.set()
        assert self.go_on.wait(PATIENCE_SECONDS)
        for device in devices:
            if device in self.breaks:
                raise self.breaks[device]
        return [Acceptance(already=False, moves_round=True) for _ in results]


class Bench:
    def __init__(self) -> None:
        self.books = Books()
        self.notified: list[str] = []
        notices, metrics = Notices(), Metrics(CollectorRegistry())
        notices.listen(Topic.RUN, self.notified.extend)
        self.results = Results(
            cast(TaskRecords, self.books),
            cast(Registry, SimpleNamespace(note_call=lambda device_id: None)),
            metrics,
            notices,
            lambda: 0.0,
        )

    async def submit(self, device_id: str) -> bool:
        report = EvaluationReport(Evaluation(0.5, 1.0, 2), Traffic(), 0.0)
        return await self.results.submit_evaluation(device_id, f"task-{device_id}", report)

    async def count(self, device_id: str) -> bool:
        """Count a result of an open task. This call takes no trip to a thread before."""
        task_id = f"task-{device_id}"
        report = EvaluationReport(Evaluation(0.5, 1.0, 2), Traffic(), 0.0)
        submission = Submission(device_id, task_id, digest_of(task_id.encode()), report)
        return await self.results.count(self.books.get_pending(device_id, task_id), submission)


async def happens(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE_SECONDS)


async def test_a_run_is_notified_of_a_result_even_if_its_device_has_hung_up() -> None:
    bench = Bench()
    bench.books.go_on.clear()
    gone = asyncio.create_task(bench.submit("gone"))
    await happens(bench.books.counting)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    bench.books.go_on.set()
    await bench.submit("next")  # the next result counts
    assert bench.notified == ["run-of-gone", "run-of-next"]


async def three_together(bench: Bench) -> list[bool | BaseException]:
    bench.books.go_on.clear()
    first = asyncio.create_task(bench.submit("first"))
    await happens(bench.books.counting)
    others = [asyncio.create_task(bench.count(device)) for device in ("a", "b", "c")]
    await asyncio.sleep(0)  # each call now waits behind the first
    bench.books.go_on.set()
    await first
    return await asyncio.gather(*others, return_exceptions=True)


async def test_an_error_in_a_batch_reaches_only_its_device() -> None:
    bench = Bench()
    bench.books.breaks["b"] = fault = ZeroDivisionError()
    assert await three_together(bench) == [False, fault, False]
    first, together, *alone = bench.books.together
    assert first == ["first"]
    assert sorted(together) == ["a", "b", "c"]
    assert alone == [[device] for device in together]
    assert sorted(bench.notified) == ["run-of-a", "run-of-c", "run-of-first"]


async def test_an_unavailable_database_is_asked_once() -> None:
    bench = Bench()
    bench.books.breaks["b"] = away = Unavailable("the database is away")
    assert await three_together(bench) == [away, away, away]
    assert [sorted(batch) for batch in bench.books.together] == [["first"], ["a", "b", "c"]]
