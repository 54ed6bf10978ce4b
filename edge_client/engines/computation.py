"""Runs an engine in a thread, so that the event loop can renew leases during a computation."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from edge_client.console import describe_step
from hfmds.algorithm.local_work import Progress

log = logging.getLogger(__name__)

R = TypeVar("R")


class _Abandoned(Exception):
    """Ends a computation from within, after the caller cancelled it."""


class Observer(Protocol):
    """Follows a computation."""

    def show(self, text: str) -> None:
        """Take the progress after a step, as text."""

    def check(self, what: str) -> None:
        """Raise an error if the computation must not go on."""


class _NoObserver:
    def show(self, text: str) -> None: ...

    def check(self, what: str) -> None: ...


NO_OBSERVER: Observer = _NoObserver()


async def compute(
    what: str,
    work: Callable[[Progress], R],
    *,
    observer: Observer = NO_OBSERVER,
    log_every_seconds: float = 10.0,
) -> R:
    """Run `work(progress)` in a thread; `what` names it in logs.

    Cancelling this call ends the work at its next step. The call returns only when the thread is
    done, so two computations never compete for the processor.
    """
    abandoned = threading.Event()
    started = logged_at = time.monotonic()

    def progress(done: int, steps: int) -> None:
        nonlocal logged_at
        if abandoned.is_set():
            raise _Abandoned
        observer.check(what)
        now = time.monotonic()
        text = describe_step(what, done, steps, now - started)
        observer.show(text)
        if now - logged_at >= log_every_seconds:
            logged_at = now
            log.info("%s", text)

    running = asyncio.ensure_future(asyncio.to_thread(work, progress))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        abandoned.set()
        await asyncio.gather(running, return_exceptions=True)
        raise
