"""Turns Ctrl-C into a cancellation: the work ends at its next `await` and cleans up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine. The first SIGINT, SIGTERM or SIGHUP cancels it; later ones do nothing.

    A signal never interrupts code between two awaits: a `finally` without awaits always completes.
    Raises KeyboardInterrupt when a signal cancelled the work.
    """
    try:
        return asyncio.run(_cancelled_by_signals(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _cancelled_by_signals(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()

    def cancel_once() -> None:
        for number in handled_signals:
            loop.add_signal_handler(number, lambda: None)
        task.cancel()

    handled_signals = [
        number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN
    ]
    for number in handled_signals:  # `nohup` makes a process ignore SIGHUP
        loop.add_signal_handler(number, cancel_once)
    return await task


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Run a function in a thread. When cancelled, wait until the function returns.

    Unlike `asyncio.to_thread`: it may be writing files in a folder that clean-up will remove.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(work)
    finally:
        await asyncio.wait({work})
