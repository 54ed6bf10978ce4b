"""Waiting for events, so that no test depends on how fast the machine is."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Outcome = TypeVar("Outcome")

_LOOK_SECONDS = 0.01


async def eventually(
    condition: Callable[[], Outcome | Awaitable[Outcome]], seconds: float = 120
) -> Outcome:
    """Wait until the condition is true, and return what it returned.

    The limit only ends a test that would hang. A slow machine never reaches it.
    """
    async with asyncio.timeout(seconds):
        while True:
            outcome = condition()
            if inspect.isawaitable(outcome):
                outcome = await outcome
            if outcome:
                return outcome
            await asyncio.sleep(_LOOK_SECONDS)


def wait_until(condition: Callable[[], Outcome], seconds: float = 120) -> Outcome:
    """Do the same as `eventually` in a test without an event loop."""
    deadline = time.monotonic() + seconds
    while not (outcome := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition is not true after {seconds} s")
        time.sleep(_LOOK_SECONDS)
    return outcome
