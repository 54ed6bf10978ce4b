"""Which calls are refused because there are too many: in all, of one address, of one device.

Refused calls are told when to come back, each caller at a time of its own. That is said before a
byte of the request is read. The log is told now and then, with one of the callers: whoever calls
too often must not fill it.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from functools import lru_cache
from types import TracebackType
from urllib.parse import unquote

from hfmds.errors import Unavailable
from hfmds.service.limits.limits import BURST_SECONDS, Limits
from hfmds.service.limits.log_throttle import Seldom
from hfmds.service.limits.rate import Rate
from hfmds.service.limits.retry_schedule import Pace

log = logging.getLogger(__name__)

# When callers that were refused come back: to refuse one costs well below 1 ms.
_BACK_PER_SECOND = 200.0
_BACK_AFTER_SECONDS = 1.0
_BACK_WITHIN_SECONDS = 120.0  # whoever floods a port must not send others away for longer
_SAY_EVERY_SECONDS = 10.0

_REMEMBERED_ADDRESSES = 10_000

REASONS = ("calls", "rate", "address_rate", "device_calls", "device_rate", "slow_request")
"""Why calls are refused; the values of a metric's label."""


class Throttled(Unavailable):
    """A call that was refused here; the log knows as much of it as it should."""


class Throttle:
    """Counts the calls of a server; used by its event loop only."""

    def __init__(self, process: str, limits: Limits, refused: Callable[[str], None]) -> None:
        """`process` is what refusals call the server; `refused` is told each one's reason."""
        self._process = process
        self._limits = limits
        self._refused = refused
        self._calls = 0
        self._device_calls: dict[str, int] = {}
        self._rate = Rate(limits.calls_per_second, BURST_SECONDS)
        self._address_rate = Rate(limits.address_calls_per_second, BURST_SECONDS)
        self._device_rate = Rate(limits.device_calls_per_second, BURST_SECONDS)
        self._pace = Pace(_BACK_PER_SECOND, _BACK_AFTER_SECONDS, _BACK_WITHIN_SECONDS)
        self._seldom = Seldom(_SAY_EVERY_SECONDS)  # by reason

    def call(self, peer: str, now: float) -> Turn:
        """One call by `peer`, as gRPC writes it, from its arrival to its end."""
        return Turn(self, peer, now)

    def _require_place(self, turn: Turn, peer: str, now: float) -> None:
        limits = self._limits
        if self._calls > limits.calls:
            # Not gRPC's own cap: that answers RESOURCE_EXHAUSTED, which says "never again".
            turn.refuse("calls", f"has {limits.calls} calls in flight, its limit", now)
        address = address_of(peer)
        if not self._address_rate.takes(address, now):
            most = f"{limits.address_calls_per_second:g} calls per second"
            turn.refuse("address_rate", f"takes {most} from {address}", now)
        if not self._rate.takes("", now):
            turn.refuse("rate", f"takes {limits.calls_per_second:g} calls per second", now)

    def _say(self, reason: str, caller: str, now: float) -> None:
        calls = self._seldom.times(reason, now)
        if calls:
            fields = {"reason": reason, "calls": calls, "last_caller": caller}
            log.warning("calls are refused", extra=fields)


class Turn:
    """One call, which may turn out to be a device's; inside, it has its place."""

    __slots__ = ("_device", "_now", "_peer", "_throttle")

    def __init__(self, throttle: Throttle, peer: str, now: float) -> None:
        self._throttle = throttle
        self._peer = peer
        self._now = now
        self._device = ""

    def __enter__(self) -> Turn:
        self._throttle._calls += 1
        try:
            self._throttle._require_place(self, self._peer, self._now)
        except BaseException:
            self._throttle._calls -= 1
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._throttle._calls -= 1
        if self._device:
            calls = self._throttle._device_calls
            left = calls.pop(self._device) - 1
            if left:
                calls[self._device] = left

    def of_device(self, device_id: str, now: float) -> None:
        """It is this device's; Unavailable if that has made, or has open, too many."""
        if self._device or not device_id:
            return
        it, limits = self._throttle, self._throttle._limits
        self._device = device_id
        calls = it._device_calls[device_id] = it._device_calls.get(device_id, 0) + 1
        if calls > limits.device_calls:
            most = f"{limits.device_calls} calls in flight from one device"
            self.refuse("device_calls", f"takes {most}", now)
        if not it._device_rate.takes(device_id, now):
            most = f"{limits.device_calls_per_second:g} calls per second from one device"
            self.refuse("device_rate", f"takes {most}", now)

    def refuse(self, reason: str, what: str, now: float) -> None:
        """Unavailable, with the time at which this caller should try again."""
        it = self._throttle
        it._refused(reason)
        it._say(reason, f"device {self._device}" if self._device else address_of(self._peer), now)
        seconds = it._pace.retry_seconds(self._peer, now)
        raise Throttled(
            f"{it._process} {what}; try again in {seconds:.1f} s", retry_after_seconds=seconds
        )


def address_of(peer: str) -> str:
    """The network address in "ipv4:10.0.0.7:41234"."""
    return network_of(unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]"))


@lru_cache(_REMEMBERED_ADDRESSES)
def network_of(host: str) -> str:
    """What to count a caller by: its IPv4 address, or the half of an IPv6 one that is a network's.

    Whoever has one address of that half has them all.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host or "unknown"
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
