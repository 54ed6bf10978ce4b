"""Caps on calls in flight and on call rates, of all callers and of each device.

A refused call learns when to try again. Limits for network addresses, and for connections that
stand still, belong to the proxy in front of the server (k8s/components/edge-proxy).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from hfmds.errors import Unavailable
from hfmds.service.limits.limits import BURST_SECONDS, Limits
from hfmds.service.limits.rate import Rate

# A fleet that was refused together comes back spread over this time.
_RETRY_FROM_SECONDS, _RETRY_TO_SECONDS = 1.0, 20.0

REASONS = ("calls", "rate", "device_calls", "device_rate", "slow_request")
"""Why a server refuses calls; the values of a metric's label."""


class Throttled(Unavailable):
    """The server refused a call because of a limit."""


class Throttle:
    """Counts the calls of a server. Use it on the event loop only."""

    def __init__(
        self,
        process: str,
        limits: Limits,
        refused: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`process` names the server in refusals; `refused` counts each refusal by its reason."""
        self._process = process
        self._limits = limits
        self._refused = refused
        self._clock = clock
        self._calls = 0
        self._device_calls: Counter[str] = Counter()
        self._rate = Rate(limits.calls_per_second, BURST_SECONDS)
        self._device_rate = Rate(limits.device_calls_per_second, BURST_SECONDS)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call while it lasts; Throttled if there are too many."""
        self._calls += 1
        try:
            if self._calls > self._limits.calls:
                self.refuse("calls", f"has {self._limits.calls} calls in flight, its limit")
            if not self._rate.takes("", self._clock()):
                self.refuse("rate", f"takes {self._limits.calls_per_second:g} calls per second")
            yield
        finally:
            self._calls -= 1

    @contextmanager
    def device_call(self, device_id: str) -> Iterator[None]:
        """Count a call of a device while it lasts; Throttled if the device makes too many."""
        self._device_calls[device_id] += 1
        try:
            if self._device_calls[device_id] > self._limits.device_calls:
                most = f"{self._limits.device_calls} calls in flight"
                self.refuse("device_calls", f"takes {most} from device {device_id}")
            if not self._device_rate.takes(device_id, self._clock()):
                most = f"{self._limits.device_calls_per_second:g} calls per second"
                self.refuse("device_rate", f"takes {most} from device {device_id}")
            yield
        finally:
            self._device_calls[device_id] -= 1
            if not self._device_calls[device_id]:
                del self._device_calls[device_id]

    def refuse(self, reason: str, what: str) -> NoReturn:
        """Raise Throttled, with the time after which the caller should try again."""
        self._refused(reason)
        seconds = random.uniform(_RETRY_FROM_SECONDS, _RETRY_TO_SECONDS)  # noqa: S311 (no secret)
        raise Throttled(
            f"{self._process} {what}; try again in {seconds:.1f} s", retry_after_seconds=seconds
        )
