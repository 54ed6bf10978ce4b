"""The devices: who they are (in the database), and who is there right now (in memory).

Presence is not worth a write per call: after a restart every live device checks in again within
seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine, select

from coordinator.tables import DeviceRow
from coordinator.task_records import TaskRecords, TaskState
from hfmds.storage.database import reading, transaction
from hfmds.wire.types import Device, DeviceProfile, DeviceState


@dataclass(slots=True)
class _Sighting:
    profile: DeviceProfile
    at: float
    visit: int  # counts check-ins, so that the end of an old one does not undo a newer one


class Registry:
    """Knows the fleet. Thread-safe."""

    def __init__(
        self, engine: Engine, tasks: TaskRecords, clock: Callable[[], float], away_seconds: float
    ) -> None:
        self._engine = engine
        self._tasks = tasks
        self._clock = clock
        self._away_seconds = away_seconds
        self._lock = threading.Lock()
        self._sightings: dict[str, _Sighting] = {}
        self._on_arrival: list[Callable[[], None]] = []

    def on_arrival(self, callback: Callable[[], None]) -> None:
        """Call back whenever a device arrives that was not there."""
        self._on_arrival.append(callback)

    def arrived(self, device_id: str, profile: DeviceProfile) -> int:
        """Note a check-in; returns its visit number for `left`."""
        now = self._clock()
        with self._lock:
            before = self._sightings.get(device_id)
            was_here = before is not None and now - before.at <= self._away_seconds
            visit = before.visit + 1 if before else 1
            self._sightings[device_id] = _Sighting(profile, now, visit)
        if before is None or before.profile != profile:
            self._remember(device_id, profile, now)
        if not was_here:
            for callback in self._on_arrival:
                callback()
        return visit

    def heard(self, device_id: str) -> None:
        """Note that a device that checked in is still there."""
        with self._lock:
            sighting = self._sightings.get(device_id)
            if sighting:
                sighting.at = self._clock()

    def left(self, device_id: str, visit: int) -> None:
        """Note that a waiting device's connection broke, unless it has come back meanwhile."""
        with self._lock:
            sighting = self._sightings.get(device_id)
            if sighting and sighting.visit == visit:
                sighting.at = float("-inf")

    def available(self) -> list[str]:
        """The devices that are there, working or not, by id."""
        earliest = self._clock() - self._away_seconds
        with self._lock:
            return sorted(d for d, sighting in self._sightings.items() if sighting.at >= earliest)

    def list(self) -> list[Device]:
        """All devices that ever checked in, by id."""
        here, leases = set(self.available()), self._tasks.leases(self._clock())
        accepted = self._tasks.counts_by_device(TaskState.ACCEPTED)
        failed = self._tasks.counts_by_device(TaskState.FAILED)
        with reading(self._engine) as session:
            return [
                Device(
                    device_id=row.device_id,
                    state=_state(row.device_id in here, row.device_id in leases),
                    profile=DeviceProfile(row.samples, row.software_version, row.engine),
                    last_seen_at=datetime.fromtimestamp(self._last_seen(row), UTC),
                    accepted_tasks=accepted.get(row.device_id, 0),
                    failed_tasks=failed.get(row.device_id, 0),
                    task_id=leases.get(row.device_id),
                )
                for row in session.scalars(select(DeviceRow).order_by(DeviceRow.device_id))
            ]

    def _last_seen(self, row: DeviceRow) -> float:
        with self._lock:
            sighting = self._sightings.get(row.device_id)
            return max(row.last_seen_at, sighting.at) if sighting else row.last_seen_at

    def _remember(self, device_id: str, profile: DeviceProfile, now: float) -> None:
        with transaction(self._engine) as session:
            session.merge(
                DeviceRow(
                    device_id=device_id,
                    samples=profile.samples,
                    software_version=profile.software_version,
                    engine=profile.engine,
                    last_seen_at=now,
                )
            )


def _state(here: bool, working: bool) -> DeviceState:
    if not here:
        return DeviceState.AWAY
    return DeviceState.WORKING if working else DeviceState.AVAILABLE
