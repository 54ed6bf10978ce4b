"""How long a device waits. Tests wait less."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from hfmds.service.client.channel import Backoff


@dataclass(frozen=True, slots=True)
class Pace:
    """Times that the device chooses. The coordinator chooses the times of leases and check-ins."""

    backoff: Backoff = field(default_factory=Backoff)  # after failed calls and failed tasks
    look_every_seconds: float = 15.0  # whether the device may still work
    tell_stage_after_seconds: float = 1.0  # a shorter stage of a task is not reported
    wait_for_room_seconds: float = 1.0  # on a full disk
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
