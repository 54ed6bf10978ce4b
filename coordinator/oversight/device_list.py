"""The devices as operators see them: who they are, whether they are present, what they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import Engine, select

from coordinator.devices.registry import Registry, profile_of
from coordinator.records.device_work import DeviceWork
from coordinator.records.tables import DeviceRow
from hfmds.domain.devices import Device, DeviceState
from hfmds.storage.database import read_session

_MAX_QUERY_DEVICES = 1000  # a statement takes only so many parameters


class DeviceList:
    """Lists and counts the devices that ever checked in; blocks."""

    def __init__(self, engine: Engine, registry: Registry, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._registry = registry
        self._work = DeviceWork(engine)
        self._clock = clock

    def states(self) -> dict[DeviceState, int]:
        """Count the devices by state."""
        seen, leases = self._registry.seen(), self._work.leases(self._clock())
        here = {device_id for device_id, device in seen.items() if device.is_here}
        with read_session(self._engine) as session:
            device_ids = session.scalars(select(DeviceRow.device_id))
            return dict(Counter(_state(d in here, d in leases) for d in device_ids))

    def page(self, after: str = "", most: int | None = None) -> tuple[Device, ...]:
        """Return the devices by id: at most `most`, after an id."""
        # The database orders the ids, so it must also say which ids are behind one.
        rows_behind = select(DeviceRow).order_by(DeviceRow.device_id).limit(most)
        if after:
            rows_behind = rows_behind.where(DeviceRow.device_id > after)
        with read_session(self._engine) as session:
            rows = session.scalars(rows_behind).all()
        leases, device_ids = self._work.leases(self._clock()), [row.device_id for row in rows]
        tallies: dict[str, tuple[int, int]] = {}
        failures: dict[str, str] = {}
        for start in range(0, len(device_ids), _MAX_QUERY_DEVICES):
            portion = device_ids[start : start + _MAX_QUERY_DEVICES]
            tallies |= self._work.tallies(portion)
            failures |= self._work.last_failures(portion)
        seen = self._registry.seen()
        devices = []
        for row in rows:
            device_id, device = row.device_id, seen.get(row.device_id)
            last_seen_at = device.last_seen_at if device else row.last_seen_at
            task_id, stage = leases.get(device_id, (None, None))
            accepted, failed = tallies.get(device_id, (0, 0))
            devices.append(
                Device(
                    device_id=device_id,
                    state=_state(bool(device and device.is_here), device_id in leases),
                    profile=device.profile if device else profile_of(row),
                    last_seen_at=datetime.fromtimestamp(last_seen_at, UTC),
                    accepted_tasks=accepted,
                    failed_tasks=failed,
                    task_id=task_id,
                    stage=stage,
                    last_failure=failures.get(device_id, ""),
                    has_twin=bool(device and device.has_twin),
                )
            )
        return tuple(devices)


def _state(here: bool, working: bool) -> DeviceState:
    if not here:
        return DeviceState.AWAY
    return DeviceState.WORKING if working else DeviceState.AVAILABLE
