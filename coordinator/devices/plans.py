"""Makes and keeps the plans by which devices without torch compute.

The coordinator makes a plan when the first device needs it. A plan belongs to a model and the
graphs that its run needs. All runs with the same needs share it, and so do coordinators that share
the database and the blobs. A plan outlives its runs until newer plans need the room.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from coordinator.records.tables import PlanRow
from hfmds.domain.digest import Digest
from hfmds.errors import HfmdsError, Unavailable
from hfmds.plans.format import PlanSpec
from hfmds.plans.plan_library import plan_key
from hfmds.storage.database import read_session, write_session
from hfmds.storage.locations import BlobsLocation

log = logging.getLogger(__name__)

_PLACE = "_plans"  # no run has this id: ids begin with a letter or digit
_RETRY_SECONDS = 30.0  # the pause after a plan could not be stored
_PLAN_ENGINES = "onnx"  # names of engines that compute by plans begin so


class Library(Protocol):
    """Makes plans, or has them already."""

    def plan(self, spec: PlanSpec) -> bytes:
        """Make the plan, or find it, as a file's bytes; may take long."""

    def close(self) -> None:
        """Stop making plans."""


class Plans:
    """Knows which plan a device needs. Thread-safe; may touch the disk and the database."""

    def __init__(
        self,
        engine: Engine,
        location: BlobsLocation,
        library: Library,
        max_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self.blobs = location.place(_PLACE)
        self._library = library
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, Digest | None] = {}  # by key; None: it cannot be made
        self._used_at: dict[str, float] = {}  # by key, of plans that this process used
        self._handed_out: dict[Digest, PlanSpec] = {}  # devices here may download these
        self._waiting: dict[
            str, list[Callable[[], None]]
        ] = {}  # callbacks by key, of plans being made
        self._failed_at: dict[str, float] = {}

    def needed(self, engine_name: str) -> bool:
        """Return whether a device with this engine computes by plans."""
        return engine_name.startswith(_PLAN_ENGINES)

    def ready(self, spec: PlanSpec, when_ready: Callable[[], None]) -> bool:
        """Return whether the plan is made, or known to be impossible.

        If not, this method starts to make it and calls `when_ready` at the end. After a storage
        failure it pauses and calls nothing back; the caller asks again.
        """
        key = plan_key(spec)
        with self._lock:
            if key in self._known:
                return True
            if key in self._waiting:
                self._waiting[key].append(when_ready)
                return False
        if self._find(key):
            return True
        with self._lock:
            if key in self._known:
                return True
            if time.monotonic() < self._failed_at.get(key, -math.inf) + _RETRY_SECONDS:
                return False
            begun = key in self._waiting
            self._waiting.setdefault(key, []).append(when_ready)
        if not begun:
            arguments = (key, spec)
            threading.Thread(target=self._make, args=arguments, name="plan", daemon=True).start()
        return False

    def of(self, spec: PlanSpec) -> Digest | None:
        """Return the plan, once it is ready; None: the network has no plan."""
        key = plan_key(spec)
        self._used_at[key] = self._clock()
        try:
            plan = self._known[key]
        except KeyError:  # another thread has just dropped it
            plan = self._find(key)
        if plan is not None:
            self._handed_out[plan] = spec
        return plan

    def contains(self, digest: Digest) -> bool:
        """Return whether this content is a plan that a device may download.

        Raises Unavailable if the plan was deleted and is being made again, so that the device asks
        again. Another coordinator may have deleted it without knowing that it is in use here.
        """
        if self.blobs.contains(digest):
            return True
        with self._lock:
            self._known = {key: plan for key, plan in self._known.items() if plan != digest}
        spec = self._handed_out.get(digest)
        if spec is None:
            return False
        if not self.ready(spec, lambda: None):
            raise Unavailable(f"plan {digest} was deleted and is being made again; ask again")
        return self.of(spec) == digest

    def close(self) -> None:
        """Stop making plans."""
        self._library.close()

    def _find(self, key: str) -> Digest | None:
        """Return a plan that this or another coordinator made before."""
        with self._lock:
            if key in self._known:
                return self._known[key]
        with read_session(self._engine) as session:
            row = session.get(PlanRow, key)
            plan = Digest(row.sha256, row.size_bytes) if row else None
        if plan is None or not self.blobs.contains(plan):
            return None
        with self._lock:
            self._known[key] = plan
        return plan

    def _make(self, key: str, spec: PlanSpec) -> None:
        fields = {"architecture": spec.model.architecture}
        log.info("making a plan, for devices without torch", extra=fields)
        started = time.monotonic()
        made: dict[str, Digest | None] = {key: None}
        try:
            made = {key: self._keep(key, self._library.plan(spec))}
            seconds = round(time.monotonic() - started, 1)
            log.info("the plan is made", extra={**fields, "plan": made[key], "seconds": seconds})
        except Unavailable as error:
            log.warning("the plan was not made, for now: %s", error, extra=fields)
            self._failed_at[key] = time.monotonic()
            made = {}
        except HfmdsError as error:
            log.warning("devices without torch cannot take part: %s", error, extra=fields)
        except Exception:
            log.exception("unexpected error; devices without torch cannot take part", extra=fields)
        with self._lock:
            self._known.update(made)
            callbacks = self._waiting.pop(key)
        for call_back in callbacks:
            call_back()

    def _keep(self, key: str, data: bytes) -> Digest:
        plan = self.blobs.put_bytes(data)
        used_at = {**self._used_at, key: self._clock()}
        with write_session(self._engine) as session:
            row = PlanRow(key=key, sha256=plan.sha256, size_bytes=plan.size_bytes, used_at=0.0)
            session.merge(row)
            for used in session.scalars(select(PlanRow).where(PlanRow.key.in_(used_at))):
                used.used_at = used_at[used.key]
            session.flush()
            dropped = self._make_room(session)
        for digest in dropped:
            self.blobs.delete(digest)
        return plan

    def _make_room(self, session: Session) -> set[Digest]:
        """Drop the plans that were used longest ago; return their content."""
        kept: set[Digest] = set()
        dropped: dict[str, Digest] = {}
        newest_first = select(PlanRow).order_by(PlanRow.used_at.desc(), PlanRow.key)
        for row in session.scalars(newest_first):
            digest = Digest(row.sha256, row.size_bytes)  # several plans may have the same content
            if kept and sum(plan.size_bytes for plan in kept | {digest}) > self._max_bytes:
                dropped[row.key] = digest
                session.delete(row)
            else:
                kept.add(digest)
        with self._lock:
            for key in dropped:
                self._known.pop(key, None)
                self._used_at.pop(key, None)
        return set(dropped.values()) - kept
