"""Presence: several coordinators on one database share which devices are present.

About once a second, each coordinator writes the changes among the devices that it has seen, and
reads the changes of the others. The sightings of a coordinator that is gone expire by themselves.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine, func, or_, select
from sqlalchemy.dialects.postgresql import insert

from coordinator.devices.registry import Registry, Sighting, profile_of
from coordinator.devices.wakeup import Wakeup
from coordinator.records.tables import DeviceRow, SightingRow
from coordinator.replicas.notices import Notices, Topic
from hfmds.errors import HfmdsError
from hfmds.storage.database import read_session, write_session

log = logging.getLogger(__name__)

_WRITE_SECONDS = 1.0  # at least, between two writes
_READ_SECONDS = 5.0  # at most, between two reads without a notice


class Presence:
    """Exchanges sightings between the registry of this replica and those of the others."""

    def __init__(self, engine: Engine, replica: str, registry: Registry, notices: Notices) -> None:
        self._engine = engine
        self._replica = replica
        self._registry = registry
        self._notices = notices
        self._known_batch = 0
        self._reading = threading.Lock()
        self._wakeup = Wakeup()
        self._closing = threading.Event()
        notices.listen(Topic.SIGHTINGS, lambda _: self._wakeup.wake())
        notices.listen(Topic.DEVICES, self._read_notice)

    def start(self) -> None:
        """Read the sightings of the others, and start the exchange."""
        self.read()
        threading.Thread(target=self._main, name="presence", daemon=True).start()

    def close(self) -> None:
        """Stop the exchange."""
        self._closing.set()
        self._wakeup.wake()

    def write(self) -> None:
        """Write the changes of this registry."""
        sightings = self._registry.unshared()
        if sightings:
            with write_session(self._engine) as session:
                batch = 1 + (session.scalar(select(func.max(SightingRow.batch))) or 0)
                rows = [_row(sighting, self._replica, batch) for sighting in sightings]
                new = insert(SightingRow)
                values = {name: new.excluded[name] for name in rows[0] if name != "device_id"}
                # A device whose call broke here may have called another replica since.
                is_right = or_(
                    new.excluded.here_until > 0.0,
                    new.excluded.last_seen_at >= SightingRow.last_seen_at,
                )
                sighted = new.on_conflict_do_update(
                    index_elements=["device_id"], set_=values, where=is_right
                )
                session.execute(sighted, rows)
            self._registry.note_shared(sightings)
            self._notices.post(Topic.DEVICES, self._replica)

    def read(self) -> None:
        """Read the changes of the others since the last read."""
        with self._reading:
            changes = (
                select(SightingRow, DeviceRow)
                .join(DeviceRow, DeviceRow.device_id == SightingRow.device_id)
                .where(SightingRow.batch > self._known_batch, SightingRow.replica != self._replica)
            )
            with read_session(self._engine) as session:
                rows = session.execute(changes).all()
                sightings = [_sighting(row, device) for row, device in rows]
                newest = max((row.batch for row, _ in rows), default=0)
            self._registry.take_shared(sightings)
            self._known_batch = max(self._known_batch, newest)

    def _read_notice(self, replicas: tuple[str, ...]) -> None:
        if self._replica not in replicas:
            self.read()

    def _main(self) -> None:
        while not self._closing.is_set():
            wakes = self._wakeup.wakes
            try:
                self.write()
                self.read()
            except HfmdsError as error:
                log.debug("sightings are not exchanged: %s", error)
            except Exception:  # if this thread ended, devices would seem to be away
                log.exception("unexpected error")
            self._closing.wait(_WRITE_SECONDS)
            self._wakeup.wait(wakes, _READ_SECONDS)


def _row(sighting: Sighting, replica: str, batch: int) -> dict[str, Any]:
    return {
        "device_id": sighting.device_id,
        "replica": replica,
        "run_id": sighting.run_id,
        "free_memory_bytes": sighting.profile.free_memory_bytes,
        "last_seen_at": sighting.last_seen_at,
        "here_until": sighting.here_until,
        "batch": batch,
    }


def _sighting(row: SightingRow, device: DeviceRow) -> Sighting:
    profile = replace(profile_of(device), free_memory_bytes=row.free_memory_bytes)
    return Sighting(row.device_id, row.run_id, profile, row.last_seen_at, row.here_until)
