import asyncio
import os
import signal
import time

import pytest

from hfmds.cli.interrupts import in_thread, run_interruptible


def test_a_result_is_returned() -> None:
    async def work() -> int:
        return 7

    assert run_interruptible(work()) == 7


def test_signals_cancel_once_and_the_clean_up_may_await() -> None:
    steps = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.05)
            steps.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(work())
    assert steps == ["cleaned up"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_code_without_awaits_is_not_interrupted() -> None:
    steps = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)  # noqa: ASYNC251 (blocks on purpose)
        steps.append("whole")
        await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(work())
    assert steps == ["whole"]


def test_a_thread_is_waited_for() -> None:
    steps = []

    def slow() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        steps.append("written")

    async def work() -> None:
        try:
            await in_thread(slow)
        finally:
            steps.append("removed")

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(work())
    assert steps == ["written", "removed"]


def test_an_error_in_a_thread_comes_out() -> None:
    def bad() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_interruptible(in_thread(bad))
