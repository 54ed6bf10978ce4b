"""Computation in a thread next to the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from edge_client.engines.computation import compute
from hfmds.algorithm.local_work import Progress
from hfmds.errors import InvalidInput
from hfmds.service.monitoring.logs import log_context


async def test_results_and_errors_of_the_thread_reach_the_caller() -> None:
    def fail(progress: Progress) -> int:
        raise InvalidInput("no")

    assert await compute("adding", lambda progress: 1 + 1) == 2
    with pytest.raises(InvalidInput):
        await compute("failing", fail)


async def test_the_event_loop_runs_during_a_computation() -> None:
    rung = threading.Event()

    async def scene() -> bool:
        asyncio.get_running_loop().call_later(0.01, rung.set)
        return await compute("waiting", lambda progress: rung.wait(30))

    assert await scene()


async def test_progress_is_shown_on_the_console(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def work(progress: Progress) -> None:
        for step in (1, 2, 4):
            progress(step, 4)

    with log_context(round=1):
        await compute("training", work, log_every_seconds=0)
    assert caplog.messages == [
        "training: step 1 of 4 (25 %), about 0 s left",
        "training: step 2 of 4 (50 %), about 0 s left",
        "training: step 4 of 4 (100 %)",
    ]


async def test_cancelling_waits_for_the_thread_to_end() -> None:
    started, ended = threading.Event(), threading.Event()

    def work(progress: Progress) -> None:
        started.set()
        try:
            while True:
                progress(1, 10)
        finally:
            ended.set()

    computing = asyncio.create_task(compute("endless", work))
    await asyncio.to_thread(started.wait)
    computing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await computing
    assert ended.is_set()


async def test_a_watcher_gets_each_step_and_can_end_the_work() -> None:
    class Strict:
        def __init__(self) -> None:
            self.heard: list[str] = []

        def show(self, text: str) -> None:
            self.heard.append(text)

        def check(self, what: str) -> None:
            if len(self.heard) == 2:
                raise InvalidInput(f"{what} is too much")

    def work(progress: Progress) -> None:
        for step in range(1, 5):
            progress(step, 4)

    strict = Strict()
    with pytest.raises(InvalidInput, match="training is too much"):
        await compute("training", work, observer=strict)
    assert [text[:21] for text in strict.heard] == [
        "training: step 1 of 4",
        "training: step 2 of 4",
    ]
