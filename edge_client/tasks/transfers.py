"""Transfers of content within the traffic of the day, repeated when they fail in transit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from edge_client.device.traffic import TrafficBudget
from hfmds.errors import CorruptData, WrongState

log = logging.getLogger(__name__)

R = TypeVar("R")

_TRANSFER_ATTEMPTS = 3


class Transfers:
    """Moves content and saves the count of moved bytes."""

    def __init__(self, budget: TrafficBudget) -> None:
        self._budget = budget

    def require(self, needed_bytes: int) -> None:
        """Raise LimitExceeded if a transfer would move more than is left of today."""
        self._budget.require(needed_bytes)

    async def repeat(self, transfer: Callable[[], Awaitable[R]]) -> R:
        """Repeat a transfer a few times when bytes arrive altered or the sides disagree."""
        try:
            for _ in range(_TRANSFER_ATTEMPTS - 1):
                try:
                    return await transfer()
                except (CorruptData, WrongState) as error:
                    log.warning("a transfer failed and starts again: %s", error)
            return await transfer()
        finally:
            await asyncio.to_thread(self._budget.save)
