"""Decides when a device that gets no work asks again.

All rejections go through `RetryTimes`. The settings HFMDS_RETRY_SECONDS and
HFMDS_CHECK_INS_PER_SECOND set the shortest time and the rate.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.devices.registry import Registry
from hfmds.domain.tasks import RetryLater
from hfmds.service.limits.retry_schedule import RetrySchedule
from hfmds.service.security.exclusions import quarantine_notice
from hfmds.service.security.revocation_gate import Gate

_QUARANTINE_SECONDS = 30.0  # so a device soon notices that its quarantine is over


class RetryTimes:
    """Gives each rejected device its own time to ask again."""

    def __init__(
        self, schedule: RetrySchedule, registry: Registry, gate: Gate, clock: Callable[[], float]
    ) -> None:
        self._schedule = schedule
        self._registry = registry
        self._gate = gate
        self._clock = clock

    def reject(self, device_id: str, reason: str) -> RetryLater:
        """Reserve the next free time, so that a large fleet comes back evenly.

        The device counts as present until then.
        """
        after_seconds = self._schedule.retry_seconds(device_id, self._clock())
        self._registry.note_pause(device_id, after_seconds)
        return RetryLater(after_seconds, reason)

    def reject_after_wait(self, device_id: str, reason: str, waited_seconds: float) -> RetryLater:
        """Let a device that waited long enough ask again at once: its next call waits, too."""
        if waited_seconds >= self._schedule.least_seconds:
            return RetryLater(0.0, reason)
        return self.reject(device_id, reason)

    def quarantine(self, device_id: str) -> RetryLater | None:
        """Reject the device if it is in quarantine."""
        quarantine = self._gate.exclusions.quarantined.get(device_id)
        if quarantine is None:
            return None
        return RetryLater(_QUARANTINE_SECONDS, quarantine_notice(device_id, quarantine))
