"""The devices: their descriptions (in the database) and their presence (in memory).

Presence is not worth a write for each call: after a restart, every live device checks in again
within seconds. `coordinator.replicas.presence` shares it with the other coordinators.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from operator import attrgetter

from sqlalchemy import Engine, select

from coordinator.records.tables import DeviceRow
from coordinator.replicas.notices import Notices, Topic
from hfmds.domain.devices import DeviceProfile, Eligibility
from hfmds.storage.database import read_session, write_session

log = logging.getLogger(__name__)

ANYONE = Eligibility()

_MAX_PROGRAMS = 8  # programs with one device id that the registry tells apart
_RETURNS_OF_TWINS = 2
_TWINS_SECONDS = 3600.0  # the registry forgets twins after this time without a turn

_GONE = 0.0  # `here_until` of a device that said goodbye, or whose call broke


@dataclass(frozen=True, slots=True)
class FleetView:
    """The devices that would work for one run, as they were at one moment; by id, in order."""

    present: Mapping[str, DeviceProfile]
    eligible: Mapping[str, DeviceProfile]  # the present devices that suit the run


@dataclass(frozen=True, slots=True)
class SeenDevice:
    """A device as operators see it."""

    profile: DeviceProfile
    last_seen_at: float
    is_here: bool
    has_twin: bool


@dataclass(frozen=True, slots=True)
class Sighting:
    """A device's presence, as one coordinator shares it with the others."""

    device_id: str
    run_id: str
    profile: DeviceProfile
    last_seen_at: float
    here_until: float


@dataclass(slots=True)
class _Programs:
    """The programs that call with the id of one device; there should be one."""

    names: tuple[str, ...] = ()  # the one that called last is at the end
    returns: int = 0  # how often one of them called after another one
    returned_at: float = -math.inf

    def note_call(self, name: str, now: float) -> bool:
        """Note which program calls; return True when it turns out that there are several.

        A restarted program replaces the one before, which does not come back. A late call of the
        one before may still arrive, so one return is no proof.
        """
        if not name or name == (self.names or ("",))[-1]:
            return False
        if name in self.names:
            self.returns, self.returned_at = self.returns + 1, now
        others = (other for other in self.names if other != name)
        self.names = (*others, name)[-_MAX_PROGRAMS:]
        return self.returns == _RETURNS_OF_TWINS

    def are_several(self, now: float) -> bool:
        """Return whether several programs share the device's id."""
        recent = now - self.returned_at < _TWINS_SECONDS
        return self.returns >= _RETURNS_OF_TWINS and recent


@dataclass(slots=True)
class _KnownDevice:
    """A device that has called this coordinator, or another one, since this one started."""

    run_id: str  # the only run it works for; empty: any
    profile: DeviceProfile
    last_seen_at: float
    expected_at: float = 0.0  # it was told to ask again then, and may be silent until then
    recorded: bool = False  # the profile is in the database
    waiting: int = 0  # open check-ins
    gone: bool = False  # it said goodbye, or its last check-in broke
    elsewhere_until: float | None = None  # another coordinator saw it last, and it is there so long
    shared: tuple[str, float] | None = None  # run_id and here_until that the others know
    programs: _Programs = field(default_factory=_Programs)


class Registry:
    """Knows the fleet. Thread-safe."""

    def __init__(
        self, engine: Engine, notices: Notices, clock: Callable[[], float], away_seconds: float
    ) -> None:
        """A silent device counts as away after `away_seconds`."""
        self.away_seconds = away_seconds
        self._engine = engine
        self._notices = notices
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _KnownDevice] = {}

    @contextmanager
    def visit(
        self, device_id: str, profile: DeviceProfile, run_id: str, process: str = ""
    ) -> Iterator[None]:
        """Wrap a check-in: the device is present inside, and away if the call breaks inside."""
        with self._lock:
            now = self._clock()
            device = self._known.get(device_id)
            if device is None:
                arrives = True
                device = self._known[device_id] = _KnownDevice(run_id, profile, now)
            else:
                # With another description, the device may suit other runs.
                changed = not _same_but_for_memory(device.profile, profile)
                arrives = changed or not self._is_here(device, now) or device.run_id != run_id
                device.recorded = device.recorded and not changed
            device.run_id, device.profile = run_id, profile
            device.waiting += 1
            _called(device, now)
            twins = device.programs.note_call(process, now)
        if twins:
            log.warning(
                "several devices run with the id %s, as after copying a state folder: all do the "
                "same tasks and one result counts; give each device its own id",
                device_id,
            )
        if arrives:
            self._notices.post_here(Topic.RUN)
        broken = True
        try:
            yield
            broken = False
        finally:
            with self._lock:
                device.waiting -= 1
                if broken:  # it may wait at another coordinator by now, so this is no sighting
                    device.gone = not device.waiting
                else:
                    device.last_seen_at = self._clock()
            if broken:
                self._notices.post_here(Topic.SIGHTINGS)

    def note_call(self, device_id: str) -> None:
        """Note a call of a device that checked in before, here or elsewhere."""
        with self._lock:
            if device := self._known.get(device_id):
                _called(device, self._clock())

    def note_goodbye(self, device_id: str) -> None:
        """Note that a device is away until it checks in again."""
        with self._lock:
            if device := self._known.get(device_id):
                _called(device, self._clock())
                device.gone = True
        self._notices.post_here(Topic.SIGHTINGS)

    def note_pause(self, device_id: str, after_seconds: float) -> None:
        """Note that a device was told to be silent for so long; it stays present."""
        with self._lock:
            device = self._known.get(device_id)
            if device:
                device.expected_at = self._clock() + after_seconds

    def view(self, run_id: str, eligibility: Eligibility = ANYONE) -> FleetView:
        """Look once at the devices that are present, working or not, and would work for a run."""
        now = self._clock()
        with self._lock:
            present = {
                device_id: device.profile
                for device_id, device in sorted(self._known.items())
                if device.run_id in ("", run_id) and self._is_here(device, now)
            }
        eligible = {d: profile for d, profile in present.items() if eligibility.admits(profile)}
        return FleetView(present, eligible)

    def record(self, profiles: Mapping[str, DeviceProfile]) -> None:
        """Write changed descriptions to the database; changed free memory alone is not written."""
        with self._lock:
            known = {device_id: self._known.get(device_id) for device_id in profiles}
            unrecorded = {
                device_id: profile
                for device_id, profile in profiles.items()
                if not ((device := known[device_id]) and device.recorded)
            }
        if not unrecorded:
            return
        with read_session(self._engine) as session:
            rows = session.scalars(select(DeviceRow).where(DeviceRow.device_id.in_(unrecorded)))
            before = {row.device_id: profile_of(row) for row in rows}
        changed = {
            device_id: profile
            for device_id, profile in unrecorded.items()
            if device_id not in before or not _same_but_for_memory(before[device_id], profile)
        }
        if changed:
            with write_session(self._engine) as session:
                for device_id, profile in changed.items():
                    session.merge(self._row(device_id, profile))
        with self._lock:
            for device_id, profile in unrecorded.items():
                device = self._known.get(device_id)
                if device and _same_but_for_memory(device.profile, profile):
                    device.recorded = True
        self._notices.post_here(Topic.SIGHTINGS)

    def _row(self, device_id: str, profile: DeviceProfile) -> DeviceRow:
        return DeviceRow(
            device_id=device_id,
            samples=profile.samples,
            software_version=profile.software_version,
            engine=profile.engine,
            labels=",".join(profile.labels),
            free_memory_bytes=profile.free_memory_bytes,
            charging=profile.charging,
            unmetered=profile.unmetered,
            last_seen_at=self._clock(),
        )

    def seen(self) -> dict[str, SeenDevice]:
        """Return the devices that have called a coordinator since this one started."""
        now = self._clock()
        with self._lock:
            return {
                device_id: SeenDevice(
                    device.profile,
                    device.last_seen_at,
                    is_here=self._is_here(device, now),
                    has_twin=device.programs.are_several(now),
                )
                for device_id, device in self._known.items()
            }

    # --- sharing with other coordinators --------------------------------------------------------

    def unshared(self) -> Sequence[Sighting]:
        """Return the sightings of this coordinator that the others do not know."""
        now = self._clock()
        with self._lock:
            return [
                sighting
                for device_id, device in self._known.items()
                if device.recorded
                and device.elsewhere_until is None
                and self._is_news(sighting := self._sighting(device_id, device, now), device.shared)
            ]

    def note_shared(self, sightings: Sequence[Sighting]) -> None:
        """Note that the others can know these sightings."""
        with self._lock:
            for sighting in sightings:
                device = self._known.get(sighting.device_id)
                if device:
                    device.shared = sighting.run_id, sighting.here_until

    def take_shared(self, sightings: Sequence[Sighting]) -> None:
        """Take sightings of other coordinators; the latest sighting of a device is right."""
        now, arrived = self._clock(), False
        with self._lock:
            for sighting in sightings:
                before = self._known.get(sighting.device_id)
                if (
                    before
                    and before.elsewhere_until is None
                    and (before.waiting or before.last_seen_at >= sighting.last_seen_at)
                ):
                    before.shared = None  # the others do not know that the device is here
                    continue
                self._known[sighting.device_id] = device = _KnownDevice(
                    sighting.run_id,
                    sighting.profile,
                    sighting.last_seen_at,
                    recorded=True,
                    elsewhere_until=sighting.here_until,
                )
                was_here = before is not None and self._is_here(before, now)
                arrived |= not was_here and self._is_here(device, now)
        if arrived:
            self._notices.post_here(Topic.RUN)

    def _sighting(self, device_id: str, device: _KnownDevice, now: float) -> Sighting:
        here_until = self._here_until(device, now)
        return Sighting(device_id, device.run_id, device.profile, device.last_seen_at, here_until)

    def _is_news(self, sighting: Sighting, shared: tuple[str, float] | None) -> bool:
        if shared is None or shared[0] != sighting.run_id:
            return True
        if _GONE in (sighting.here_until, shared[1]):
            return sighting.here_until != shared[1]
        # The time moves on with every call; it is shared before the others count the device away.
        return abs(sighting.here_until - shared[1]) > self.away_seconds / 3

    def _is_here(self, device: _KnownDevice, now: float) -> bool:
        return self._here_until(device, now) >= now

    def _here_until(self, device: _KnownDevice, now: float) -> float:
        """Return how long the device counts as present if it stays silent."""
        if device.elsewhere_until is not None:
            return device.elsewhere_until
        if device.waiting:
            return now + self.away_seconds
        if device.gone:
            return _GONE
        return max(device.last_seen_at, device.expected_at) + self.away_seconds


def _called(device: _KnownDevice, now: float) -> None:
    """Note a call of the device at this coordinator."""
    device.last_seen_at, device.gone, device.elsewhere_until = now, False, None


def profile_of(row: DeviceRow) -> DeviceProfile:
    """Return a device's last description."""
    return DeviceProfile(
        samples=row.samples,
        software_version=row.software_version,
        engine=row.engine,
        labels=tuple(row.labels.split(",")) if row.labels else (),
        free_memory_bytes=row.free_memory_bytes,
        charging=row.charging,
        unmetered=row.unmetered,
    )


_but_for_memory = attrgetter(
    *(field.name for field in fields(DeviceProfile) if field.name != "free_memory_bytes")
)


def _same_but_for_memory(profile: DeviceProfile, other: DeviceProfile) -> bool:
    """Compare all but free memory, which changes at every check-in."""
    same: bool = _but_for_memory(profile) == _but_for_memory(other)
    return same
