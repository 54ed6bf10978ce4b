"""Decides which of several coordinators on one PostgreSQL drives the runs: the lease holder.

The lease is a row, and the database's clock decides when it ends. A leader that cannot renew it in
time stops. If the leader stops too late, because its machine stood still, the *fence* of its term
refuses it: each transaction of a driver first checks that the term is the newest. A coordinator
that takes the lease waits for its turn as every writer does. So a transaction of the old leader is
finished by then, or the fence refuses it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Connection, Double, Engine, cast, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from coordinator.monitoring.metrics import Metrics
from coordinator.records.tables import LeadershipRow
from coordinator.replicas.notices import Notices, Topic
from hfmds.errors import HfmdsError
from hfmds.storage.database import (
    fenced,
    passing_errors_are_unavailable,
    read_session,
    write_session,
)

log = logging.getLogger(__name__)

_NAME = "coordinator"
_RENEWALS_PER_LEASE = 3
_NOW = cast(func.extract("epoch", func.clock_timestamp()), Double)
_EPOCH = select(LeadershipRow.epoch).where(LeadershipRow.name == _NAME)


class Deposed(Exception):
    """Another coordinator leads, so this one must not continue."""


class Term:
    """The time in which a coordinator leads, with the database for its drivers."""

    def __init__(self, engine: Engine, epoch: int) -> None:
        self.epoch = epoch
        self.over = False
        self.engine = fenced(engine, self._fence)

    def _fence(self, connection: Connection) -> None:
        if self.over or connection.scalar(_EPOCH) != self.epoch:
            raise Deposed(f"leadership {self.epoch} is over")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of trying to take the lease."""

    epoch: int  # of the new term; 0: another coordinator has the lease
    seconds: float  # for how long the lease is held, by either
    since: float  # by this process's clock, not later than the database began to count


class LeaseRecords:
    """The lease in the database."""

    def __init__(
        self,
        engine: Engine,
        holder: str,
        lease_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.holder = holder
        self.seconds = lease_seconds
        self._clock = clock
        self._renewing: Connection | None = None  # kept open, so that a renewal never waits for one

    def take(self) -> Attempt:
        """Begin a new term, if the lease is free or this coordinator had it."""
        since = self._clock()
        with read_session(self.engine) as session:  # a standby must not take a writer's turn
            seconds = self._others_seconds(session)
        if seconds > 0:
            return Attempt(0, seconds, since)
        with write_session(self.engine) as session:
            since = self._clock()  # the turn may have come late
            seconds = self._others_seconds(session)
            if seconds > 0:
                return Attempt(0, seconds, since)
            now = session.scalar(select(_NOW)) or 0.0
            row = session.get(LeadershipRow, _NAME)
            epoch = row.epoch + 1 if row else 1
            session.merge(
                LeadershipRow(
                    name=_NAME,
                    holder=self.holder,
                    epoch=epoch,
                    expires_at=now + self.seconds,
                )
            )
            return Attempt(epoch, self.seconds, since)

    def _others_seconds(self, session: Session) -> float:
        """Return for how long another coordinator has the lease."""
        row = session.get(LeadershipRow, _NAME)
        if row is None or row.holder == self.holder:
            return 0.0
        return row.expires_at - (session.scalar(select(_NOW)) or 0.0)

    def renew(self, epoch: int) -> bool:
        """Extend the lease; return false if another term has begun.

        This is one statement that waits for no turn, so a busy database does not cost the lease.
        """
        with passing_errors_are_unavailable(self.engine):
            if self._renewing is None:
                connection = self.engine.connect()
                self._renewing = connection.execution_options(isolation_level="AUTOCOMMIT")
                self._renewing.detach()
            try:
                renewed = self._renewing.execute(
                    update(LeadershipRow)
                    .where(LeadershipRow.name == _NAME, LeadershipRow.epoch == epoch)
                    .values(expires_at=_NOW + self.seconds)
                )
            except DBAPIError:
                connection, self._renewing = self._renewing, None
                connection.close()
                raise
            return renewed.rowcount == 1

    def release(self, epoch: int) -> None:
        """End the lease of this term now."""
        mine = (LeadershipRow.name == _NAME, LeadershipRow.epoch == epoch)
        with write_session(self.engine) as session:
            session.execute(update(LeadershipRow).where(*mine).values(expires_at=0.0))


class Leader(Protocol):
    """The work that only the leading coordinator does."""

    def lead(self, term: Term) -> None:
        """Begin to lead. Each renewal calls this again, so that no run is left out."""

    def follow(self) -> None:
        """Stop leading. This must not wait for anything."""


class Leadership:
    """Takes the lease when it is free, and renews it."""

    def __init__(
        self,
        lease: LeaseRecords,
        leader: Leader,
        notices: Notices,
        metrics: Metrics,
    ) -> None:
        self._lease = lease
        self._leader = leader
        self._notices = notices
        self._metrics = metrics
        self._changed = threading.Condition()
        self._term: Term | None = None
        self._good_until = 0.0  # by `time.monotonic`; the lease ends a little later
        self._next_try_at = 0.0
        self._closing = False
        notices.listen(Topic.TERM, self._try_now)

    def start(self) -> None:
        """Start the threads, which take the lease as soon as it is free."""
        for work in (self._keep_trying, self._keep_watch):
            threading.Thread(target=work, name=f"leadership {work.__name__}", daemon=True).start()

    def close(self) -> None:
        """Stop leading, and let another coordinator take the lease at once."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            term = self._term
        if term is None:
            return
        self._step_down(term, "this coordinator stops")
        try:
            self._lease.release(term.epoch)
        except HfmdsError as error:
            log.warning("the lease is not released and runs out by itself: %s", error)
        self._notices.post(Topic.TERM)

    # --- the threads ----------------------------------------------------------------------------

    def _keep_trying(self) -> None:
        """Renew the lease, or try to take it."""
        warned = False
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or time.monotonic() >= self._next_try_at,
                    max(0.0, self._next_try_at - time.monotonic()),
                )
                if self._closing:
                    return
                self._next_try_at = time.monotonic() + self._lease.seconds / _RENEWALS_PER_LEASE
            try:
                self._renew_or_take()
                warned = False
            except HfmdsError as error:
                if not warned:
                    log.warning("cannot reach the lease: %s", error)
                warned = True
            except Exception:  # if this thread ended, no coordinator would lead
                log.exception("unexpected error")

    def _keep_watch(self) -> None:
        """Step down when the lease was not renewed in time, even while a renewal hangs."""
        while True:
            with self._changed:
                remaining = self._good_until - time.monotonic() if self._term else None
                if not self._closing and (remaining is None or remaining > 0):
                    self._changed.wait(remaining)
                if self._closing:
                    return
                late = self._term if time.monotonic() >= self._good_until else None
            if late:
                self._step_down(late, "the lease could not be renewed in time")

    def _renew_or_take(self) -> None:
        tried_at, term = time.monotonic(), self._term
        if term is None:
            attempt = self._lease.take()
            tried_at = attempt.since
            if not attempt.epoch:
                with self._changed:
                    self._next_try_at = min(self._next_try_at, tried_at + attempt.seconds)
                return
            term = Term(self._lease.engine, attempt.epoch)
            fields = {"replica": self._lease.holder, "epoch": term.epoch}
            log.info("this coordinator leads", extra=fields)
            self._metrics.set_leading(True)
        elif not self._lease.renew(term.epoch):
            self._step_down(term, "another coordinator leads")
            return
        with self._changed:
            if self._closing or term.over:
                return
            self._term = term
            # Early, because stopping takes time.
            self._good_until = tried_at + 0.9 * self._lease.seconds
            self._changed.notify_all()
        self._leader.lead(term)

    def _step_down(self, term: Term, reason: str) -> None:
        with self._changed:
            if term.over:
                return
            term.over = True
            self._term = None
            self._changed.notify_all()
        fields = {"replica": self._lease.holder}
        log.warning("this coordinator no longer leads: %s", reason, extra=fields)
        self._metrics.set_leading(False)
        self._leader.follow()

    def _try_now(self, _: tuple[str, ...]) -> None:
        with self._changed:
            self._next_try_at = 0.0
            self._changed.notify_all()
