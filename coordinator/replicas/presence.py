"""Who is there, told from coordinator to coordinator, if several share a database.

Each writes what has changed among the devices it has seen, about once a second and all at once, and
reads what the others wrote. What a coordinator that is gone has written fades by itself.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine, func, or_, select
from sqlalchemy.dialects.postgresql import insert

from coordinator.devices.registry import CUT_OFF, Registry, Sighting, profile_of
from coordinator.devices.wakeup import Bell
from coordinator.records.tables import DeviceRow, SightingRow
from coordinator.replicas.notices import Switchboard, Topic
from hfmds.errors import HfmdsError
from hfmds.storage.database import reading, transaction

log = logging.getLogger(__name__)

_LEAST_SECONDS = 1.0  # between two writes
_LOOK_SECONDS = 5.0  # leases are renewed and times pass without anyone ringing


class Presence:
    """Keeps the registry of one replica in step with those of the others."""

    def __init__(
        self, engine: Engine, replica: str, registry: Registry, switchboard: Switchboard
    ) -> None:
        self._engine = engine
        self._replica = replica
        self._registry = registry
        self._switchboard = switchboard
        self._known_batch = 0
        self._reading = threading.Lock()
        self._bell = Bell()
        self._closing = threading.Event()
        registry.on_change(self._bell.ring)
        switchboard.listen(Topic.DEVICES, self._told)

    def start(self) -> None:
        """Learn who is there, and keep on."""
        self.read()
        threading.Thread(target=self._main, name="presence", daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._bell.ring()

    def write(self) -> None:
        """Tell the others what has changed here."""
        sightings = self._registry.unshared()
        if sightings:
            with transaction(self._engine) as session:
                batch = 1 + (session.scalar(select(func.max(SightingRow.batch))) or 0)
                rows = [_row(sighting, self._replica, batch) for sighting in sightings]
                fresh = insert(SightingRow)
                values = {name: fresh.excluded[name] for name in rows[0] if name != "device_id"}
                # Whose call is cut off here may be waiting elsewhere; who takes leave is gone.
                not_elsewhere = or_(
                    fresh.excluded.here_until != CUT_OFF,
                    SightingRow.replica == self._replica,
                )
                session.execute(
                    fresh.on_conflict_do_update(
                        index_elements=["device_id"], set_=values, where=not_elsewhere
                    ),
                    rows,
                )
            self._registry.note_shared(sightings)
            self._switchboard.post(Topic.DEVICES, self._replica)

    def read(self) -> None:
        """Learn what the others have told since the last time."""
        with self._reading:
            news = (
                select(SightingRow, DeviceRow)
                .join(DeviceRow, DeviceRow.device_id == SightingRow.device_id)
                .where(SightingRow.batch > self._known_batch, SightingRow.replica != self._replica)
            )
            with reading(self._engine) as session:
                rows = session.execute(news).all()
                sightings = [_sighting(row, device) for row, device in rows]
                newest = max((row.batch for row, _ in rows), default=0)
            self._registry.take_shared(sightings)
            self._known_batch = max(self._known_batch, newest)

    def _told(self, by: tuple[str, ...]) -> None:
        if self._replica not in by:
            self.read()

    def _main(self) -> None:
        while not self._closing.is_set():
            rings = self._bell.rings
            try:
                self.write()
                self.read()
            except HfmdsError as error:
                log.debug("others do not hear who is there: %s", error)
            except Exception:  # this thread must not end: devices would seem to be away
                log.exception("unexpected error")
            self._closing.wait(_LEAST_SECONDS)
            self._bell.wait(rings, _LOOK_SECONDS)


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
