"""The devices: who they are (in the database), and who is there right now (in memory).

Presence is not worth a write per call: after a restart every live device checks in again within
seconds. What coordinators that share a database tell each other of it is in `presence`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from operator import attrgetter

from sqlalchemy import Engine, select

from coordinator.devices.listing import by_device
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.tables import DeviceRow
from hfmds.domain.devices import Device, DeviceProfile, DeviceState, Eligibility
from hfmds.storage.database import reading, transaction

log = logging.getLogger(__name__)

ANYONE = Eligibility()

_ASKED_AT_ONCE = 1000  # devices; a statement takes only so many names

_MOST_TWINS = 8  # programs with one id that are told apart
_RETURNS_OF_TWINS = 2
_TWINS_SECONDS = 3600.0  # after which those who took turns are forgotten

# Times till which a device counts as there that say why it does not.
LEFT = 0.0  # it said goodbye
CUT_OFF = -1.0  # its call was; it may be waiting at another coordinator by now


@dataclass(frozen=True, slots=True)
class FleetView:
    """The devices that would work for one run, as they were at one moment; by id, in order."""

    present: Mapping[str, DeviceProfile]
    eligible: Mapping[str, DeviceProfile]  # those of the present that suit the run


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one coordinator tells the others of a device."""

    device_id: str
    run_id: str
    profile: DeviceProfile
    last_seen_at: float
    here_until: float


@dataclass(slots=True)
class _Sighting:
    """What is known of a device that has called since the coordinator was started."""

    run_id: str  # the only run it works for; empty: any
    profile: DeviceProfile
    last_seen_at: float
    expected_at: float = 0.0  # when it was told to ask again; till then it may be silent
    recorded: bool = False  # the profile is in the database
    waiting: int = 0  # check-ins that are open
    broken: bool = False  # its last check-in was cut off
    left: bool = False  # it said goodbye
    told: tuple[str, float] | None = None  # to other coordinators: run_id and here_until
    processes: tuple[str, ...] = ()  # of its programs, the one that called last at the end
    returns: int = 0  # how often one of them has called after another
    returned_at: float = -math.inf

    def called_by(self, process: str, now: float) -> bool:
        """Note which program calls; true when it is found that several run with one id.

        One that was started anew calls after the one before, which does not come back. But a
        call of that one may come late.
        """
        if not process or process == (self.processes or ("",))[-1]:
            return False
        if process in self.processes:
            self.returns, self.returned_at = self.returns + 1, now
        others = (other for other in self.processes if other != process)
        self.processes = (*others, process)[-_MOST_TWINS:]
        return self.returns == _RETURNS_OF_TWINS

    def has_twin(self, now: float) -> bool:
        recent = now - self.returned_at < _TWINS_SECONDS
        return self.returns >= _RETURNS_OF_TWINS and recent


class Registry:
    """Knows the fleet. Thread-safe."""

    def __init__(
        self, engine: Engine, tasks: TaskRecords, clock: Callable[[], float], away_seconds: float
    ) -> None:
        self.away_seconds = away_seconds
        self._engine = engine
        self._tasks = tasks
        self._clock = clock
        self._lock = threading.Lock()
        self._sightings: dict[str, _Sighting] = {}
        self._elsewhere: dict[str, Sighting] = {}  # those that other coordinators saw last
        self._on_arrival: Callable[[], None] = lambda: None
        self._on_change: Callable[[], None] = lambda: None

    def on_arrival(self, callback: Callable[[], None]) -> None:
        """Call back whenever a device arrives that was not there."""
        self._on_arrival = callback

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever there is something to tell other coordinators soon."""
        self._on_change = callback

    @contextmanager
    def visit(
        self, device_id: str, profile: DeviceProfile, run_id: str, process: str = ""
    ) -> Iterator[None]:
        """Around a check-in: inside, the device is there; cut off inside, it is not any more."""
        with self._lock:
            now = self._clock()
            sighting = self._sightings.get(device_id)
            if sighting is None:
                arrives = True
                sighting = self._sightings[device_id] = _Sighting(run_id, profile, now)
            else:
                # One that describes itself otherwise may suit a run that it did not suit before.
                changed = not _same_but_for_memory(sighting.profile, profile)
                here = self._is_here(sighting, now)
                arrives = changed or not here or sighting.run_id != run_id
                sighting.recorded = sighting.recorded and not changed
            self._elsewhere.pop(device_id, None)
            sighting.run_id, sighting.profile, sighting.last_seen_at = run_id, profile, now
            sighting.waiting += 1
            sighting.broken = sighting.left = False
            twins = sighting.called_by(process, now)
        if twins:
            log.warning(
                "several devices run with the id %s, as if its state folder were copied: all do "
                "the same tasks, and one result counts; give each an id of its own",
                device_id,
            )
        if arrives:
            self._on_arrival()
        broken = True
        try:
            yield
            broken = False
        finally:
            with self._lock:
                sighting.waiting -= 1
                sighting.broken = broken
                sighting.last_seen_at = self._clock()
            if broken:
                self._on_change()

    def heard(self, device_id: str) -> None:
        """Note that a device that checked in, here or elsewhere, is still there."""
        with self._lock:
            sighting = self._seen_before(device_id)
            if sighting:
                sighting.last_seen_at = self._clock()
                sighting.broken = sighting.left = False

    def left(self, device_id: str) -> None:
        """Note that a device has gone, until it checks in again."""
        with self._lock:
            sighting = self._seen_before(device_id)
            if sighting:
                sighting.last_seen_at, sighting.left = self._clock(), True
        self._on_change()

    def expect(self, device_id: str, after_seconds: float) -> None:
        """Note that a device was told to be silent for so long: it counts as there meanwhile."""
        with self._lock:
            sighting = self._sightings.get(device_id)
            if sighting:
                sighting.expected_at = self._clock() + after_seconds

    def available(self, run_id: str, eligibility: Eligibility = ANYONE) -> dict[str, DeviceProfile]:
        """The devices that are there, working or not, and would work for this run, by id."""
        now = self._clock()
        with self._lock:
            return {
                device_id: sighting.profile
                for device_id, sighting in sorted((self._elsewhere | self._sightings).items())
                if sighting.run_id in ("", run_id)
                and self._is_here(sighting, now)
                and eligibility.admits(sighting.profile)
            }

    def view(self, run_id: str, eligibility: Eligibility) -> FleetView:
        """Look once at the devices that are present and would work for this run."""
        present = self.available(run_id)
        eligible = {d: profile for d, profile in present.items() if eligibility.admits(profile)}
        return FleetView(present, eligible)

    def remember(self, profiles: Mapping[str, DeviceProfile]) -> None:
        """Keep how devices describe themselves; of free memory, only as it was when written."""
        with self._lock:
            seen = {device_id: self._sightings.get(device_id) for device_id in profiles}
            news = {d: p for d, p in profiles.items() if not ((s := seen[d]) and s.recorded)}
        if not news:
            return
        with reading(self._engine) as session:
            rows = session.scalars(select(DeviceRow).where(DeviceRow.device_id.in_(news)))
            known = {row.device_id: profile_of(row) for row in rows}
        changed = [d for d in news if d not in known or not _same_but_for_memory(known[d], news[d])]
        if changed:
            with transaction(self._engine) as session:
                for device_id in changed:
                    session.merge(self._row(device_id, news[device_id]))
        with self._lock:
            for device_id, profile in news.items():
                sighting = self._sightings.get(device_id)
                if sighting and _same_but_for_memory(sighting.profile, profile):
                    sighting.recorded = True
        self._on_change()

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

    def states(self) -> dict[DeviceState, int]:
        """How many devices that ever checked in are in each state."""
        here, leases = self._here(), self._tasks.leases(self._clock())
        with reading(self._engine) as session:
            known = session.scalars(select(DeviceRow.device_id))
            return dict(Counter(_state(one in here, one in leases) for one in known))

    def list(self, after: str = "", most: int | None = None) -> list[Device]:
        """All devices that ever checked in, by id; so many of them behind an id."""
        with reading(self._engine) as session:
            rows = session.scalars(by_device(DeviceRow, after, most)).all()
        leases, listed = self._tasks.leases(self._clock()), [row.device_id for row in rows]
        tallies: dict[str, tuple[int, int]] = {}
        failures: dict[str, str] = {}
        for start in range(0, len(listed), _ASKED_AT_ONCE):
            some = listed[start : start + _ASKED_AT_ONCE]
            tallies |= self._tasks.tallies(some)
            failures |= self._tasks.last_failures(some)
        here = self._here()
        now = self._clock()
        with self._lock:
            seen = self._elsewhere | self._sightings
            twins = {name for name, one in self._sightings.items() if one.has_twin(now)}
        devices = []
        for row in rows:
            name, sighting = row.device_id, seen.get(row.device_id)
            last_seen_at = sighting.last_seen_at if sighting else row.last_seen_at
            task_id, stage = leases.get(name, (None, None))
            accepted, failed = tallies.get(name, (0, 0))
            devices.append(
                Device(
                    device_id=name,
                    state=_state(name in here, name in leases),
                    profile=sighting.profile if sighting else profile_of(row),
                    last_seen_at=datetime.fromtimestamp(last_seen_at, UTC),
                    accepted_tasks=accepted,
                    failed_tasks=failed,
                    task_id=task_id,
                    stage=stage,
                    last_failure=failures.get(name, ""),
                    has_twin=name in twins,
                )
            )
        return devices

    def _here(self) -> set[str]:
        """The devices that are there."""
        now = self._clock()
        with self._lock:
            seen = self._elsewhere | self._sightings
            return {device_id for device_id, one in seen.items() if self._is_here(one, now)}

    # --- with other coordinators ----------------------------------------------------------------

    def untold(self) -> Sequence[Sighting]:
        """What the others should know of the devices seen here, and do not."""
        now = self._clock()
        with self._lock:
            sightings = [
                Sighting(d, s.run_id, s.profile, s.last_seen_at, self._here_until(s, now))
                for d, s in self._sightings.items()
                if s.recorded
            ]
            return [s for s in sightings if self._is_news(s, self._sightings[s.device_id].told)]

    def told(self, sightings: Sequence[Sighting]) -> None:
        """Note that the others can know this."""
        with self._lock:
            for sighting in sightings:
                mine = self._sightings.get(sighting.device_id)
                if mine:
                    mine.told = sighting.run_id, sighting.here_until

    def told_by_others(self, sightings: Sequence[Sighting]) -> None:
        """Take what others have seen: of each device, whoever saw it last is right."""
        now, arrived = self._clock(), False
        with self._lock:
            for sighting in sightings:
                mine = self._sightings.get(sighting.device_id)
                if mine and (mine.waiting or mine.last_seen_at >= sighting.last_seen_at):
                    mine.told = None  # they have missed that it is here
                    continue
                before = self._sightings.pop(sighting.device_id, None) or self._elsewhere.get(
                    sighting.device_id
                )
                self._elsewhere[sighting.device_id] = sighting
                was_here = before is not None and self._is_here(before, now)
                arrived |= not was_here and self._is_here(sighting, now)
        if arrived:
            self._on_arrival()

    def _is_news(self, sighting: Sighting, told: tuple[str, float] | None) -> bool:
        if told is None or told[0] != sighting.run_id:
            return True
        if sighting.here_until <= LEFT or told[1] <= LEFT:
            return sighting.here_until != told[1]
        # Else the time passes on and on; it is told often enough that nobody counts as away.
        return abs(sighting.here_until - told[1]) > self.away_seconds / 3

    def _seen_before(self, device_id: str) -> _Sighting | None:
        """What is known of a device that speaks to us, though it checked in elsewhere, perhaps."""
        other = self._elsewhere.pop(device_id, None)
        if other:
            self._sightings[device_id] = _Sighting(
                other.run_id, other.profile, other.last_seen_at, recorded=True
            )
        return self._sightings.get(device_id)

    def _is_here(self, sighting: _Sighting | Sighting, now: float) -> bool:
        if isinstance(sighting, Sighting):
            return sighting.here_until >= now
        return self._here_until(sighting, now) >= now

    def _here_until(self, sighting: _Sighting, now: float) -> float:
        """Till when a device counts as there, if nothing more is heard of it."""
        if sighting.left and not sighting.waiting:
            return LEFT
        if sighting.waiting:
            return now + self.away_seconds
        if sighting.broken:
            return CUT_OFF
        return max(sighting.last_seen_at, sighting.expected_at) + self.away_seconds


def profile_of(row: DeviceRow) -> DeviceProfile:
    """A device as it described itself last."""
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


def _same_but_for_memory(one: DeviceProfile, other: DeviceProfile) -> bool:
    """Free memory changes all the time: not worth a write at every check-in."""
    same: bool = _but_for_memory(one) == _but_for_memory(other)
    return same


def _state(here: bool, working: bool) -> DeviceState:
    if not here:
        return DeviceState.AWAY
    return DeviceState.WORKING if working else DeviceState.AVAILABLE
