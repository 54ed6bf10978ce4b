"""The plans by which devices without torch compute: made when one asks, kept with the content.

A plan belongs to a model and the graphs that its run needs. All runs with the same needs share it,
and so do coordinators that share the database and the blobs. It outlasts its runs, until newer
plans need the room.
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
from hfmds.storage.database import reading, transaction
from hfmds.storage.locations import BlobsLocation

log = logging.getLogger(__name__)

_PLACE = "_plans"  # no run's, since ids begin with a letter or digit
_RETRY_SECONDS = 30.0  # after which a plan is made again that could not be stored
_PLAN_ENGINES = "onnx"  # what the name of an engine that computes by plans begins with


class Library(Protocol):
    """What makes plans, or has them from before."""

    def plan(self, spec: PlanSpec) -> bytes:
        """Make the plan, or find it, as a file's bytes; may take long."""

    def close(self) -> None:
        """Leave off what is being made."""


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
        self._used_at: dict[str, float] = {}  # by key, those that were asked for here
        self._told: dict[Digest, PlanSpec] = {}  # devices of here may ask for these
        self._waiting: dict[str, list[Callable[[], None]]] = {}  # for those being made
        self._failed_at: dict[str, float] = {}

    def needed(self, engine_name: str) -> bool:
        """Whether a device with this engine computes by plans."""
        return engine_name.startswith(_PLAN_ENGINES)

    def ready(self, spec: PlanSpec, when_ready: Callable[[], None]) -> bool:
        """Whether it is known which plan the model has; if not, that begins, and is told.

        Not, however, if it could not be stored a moment ago: ask again.
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
        """The model's plan, once that is ready; None: its network cannot be made one of."""
        key = plan_key(spec)
        self._used_at[key] = self._clock()
        try:
            plan = self._known[key]
        except KeyError:  # it has just left
            plan = self._find(key)
        if plan is not None:
            self._told[plan] = spec
        return plan

    def contains(self, digest: Digest) -> bool:
        """Whether this content is a plan that some device may have been told of.

        Unavailable if it has left since, and is made anew: devices ask again then. Another
        coordinator makes room without knowing what is in use here.
        """
        if self.blobs.contains(digest):
            return True
        with self._lock:
            self._known = {key: plan for key, plan in self._known.items() if plan != digest}
        spec = self._told.get(digest)
        if spec is None:
            return False
        if not self.ready(spec, lambda: None):
            raise Unavailable(f"plan {digest} has left, and is made again; ask again")
        return self.of(spec) == digest

    def close(self) -> None:
        """Leave off what is being made."""
        self._library.close()

    def _find(self, key: str) -> Digest | None:
        """A plan that was made before, here or by another coordinator."""
        with self._lock:
            if key in self._known:
                return self._known[key]
        with reading(self._engine) as session:
            row = session.get(PlanRow, key)
            plan = Digest(row.sha256, row.size_bytes) if row else None
        if plan is None or not self.blobs.contains(plan):
            return None
        with self._lock:
            self._known[key] = plan
        return plan

    def _make(self, key: str, spec: PlanSpec) -> None:
        told = {"architecture": spec.model.architecture}
        log.info("making a plan, for devices without torch", extra=told)
        started = time.monotonic()
        found: dict[str, Digest | None] = {key: None}
        try:
            found = {key: self._keep(key, self._library.plan(spec))}
            seconds = round(time.monotonic() - started, 1)
            log.info("the plan is made", extra={**told, "plan": found[key], "seconds": seconds})
        except Unavailable as error:
            log.warning("the plan was not made, for now: %s", error, extra=told)
            self._failed_at[key] = time.monotonic()
            found = {}
        except HfmdsError as error:
            log.warning("devices without torch cannot take part: %s", error, extra=told)
        except Exception:
            log.exception("unexpected error; devices without torch cannot take part", extra=told)
        with self._lock:
            self._known.update(found)
            waiting = self._waiting.pop(key)
        for tell in waiting:
            tell()

    def _keep(self, key: str, data: bytes) -> Digest:
        plan = self.blobs.put_bytes(data)
        used_at = {**self._used_at, key: self._clock()}
        with transaction(self._engine) as session:
            row = PlanRow(key=key, sha256=plan.sha256, size_bytes=plan.size_bytes, used_at=0.0)
            session.merge(row)
            for one in session.scalars(select(PlanRow).where(PlanRow.key.in_(used_at))):
                one.used_at = used_at[one.key]
            session.flush()
            left = self._make_room(session)
        for digest in left:
            self.blobs.delete(digest)
        return plan

    def _make_room(self, session: Session) -> set[Digest]:
        """Forget those that were not used for longest; what of the content nobody needs now."""
        kept: set[Digest] = set()
        left: dict[str, Digest] = {}
        newest_first = select(PlanRow).order_by(PlanRow.used_at.desc(), PlanRow.key)
        for row in session.scalars(newest_first):
            digest = Digest(row.sha256, row.size_bytes)  # several may have the same
            if kept and sum(one.size_bytes for one in kept | {digest}) > self._max_bytes:
                left[row.key] = digest
                session.delete(row)
            else:
                kept.add(digest)
        with self._lock:
            for key in left:
                self._known.pop(key, None)
                self._used_at.pop(key, None)
        return set(left.values()) - kept
