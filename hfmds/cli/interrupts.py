"""Ctrl-C as a cancellation: the work ends at its next `await`, its clean-up runs undisturbed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine; the first of SIGINT, SIGTERM, SIGHUP cancels it, later ones do nothing.

    Code between two awaits is never interrupted: a process that was started is always noted, a
    `finally` without awaits always completes. Raises KeyboardInterrupt when interrupted.
    """
    try:
        return asyncio.run(_cancelled_by_signals(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _cancelled_by_signals(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()

    def cancel_once() -> None:
        for number in heeded:
            loop.add_signal_handler(number, lambda: None)
        task.cancel()

    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heeded:  # not what `nohup` has us ignore
        loop.add_signal_handler(number, cancel_once)
    return await task


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Run a function beside the event loop; cancelled, wait until it is through.

    Unlike `asyncio.to_thread`: it may be writing files in a folder that clean-up will remove.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(work)
    finally:
        await asyncio.wait({work})
