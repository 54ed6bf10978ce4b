"""The drain: operators send devices away from the coordinator, and let them come back."""

from __future__ import annotations

from coordinator.records.drain import DrainRecords
from coordinator.replicas.notices import Notices, Topic
from hfmds.domain.administration.operations import Drain


class DrainSwitch:
    """Starts and ends the drain of the coordinator."""

    def __init__(self, drain: DrainRecords, notices: Notices) -> None:
        self._drain = drain
        self._notices = notices

    def set(self, on: bool, by: str) -> Drain:
        """Record it durably, and wake everything that it concerns; blocks."""
        drain = self._drain.set(on, by)
        self._notices.post(Topic.WORK)  # waiting devices go away, or get work
        self._notices.post(Topic.RUN)  # waiting rounds go on
        return drain
