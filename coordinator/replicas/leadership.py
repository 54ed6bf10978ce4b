"""Which of several coordinators on one PostgreSQL drives the runs: the one that holds the lease.

The lease is a row that is judged by the database's clock. A leader that cannot renew it in time
stops by itself; should it be too late for that (a machine that stood still), its term's *fence*
refuses it: whatever a driver reads or writes, it asks in the same transaction whether the term is
still the last. Taking the lease waits for its turn as every writer does, so what the old leader was
in the middle of is done, or will be refused.
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
from coordinator.replicas.notices import Switchboard, Topic
from hfmds.errors import HfmdsError
from hfmds.storage.database import (
    fenced,
    passing_errors_are_unavailable,
    reading,
    transaction,
)

log = logging.getLogger(__name__)

_NAME = "coordinator"
_RENEWALS_PER_LEASE = 3
_NOW = cast(func.extract("epoch", func.clock_timestamp()), Double)
_EPOCH = select(LeadershipRow.epoch).where(LeadershipRow.name == _NAME)


class Deposed(Exception):
    """Another coordinator leads: what was about to be done is not ours to do any more."""


class Term:
    """The time for which a coordinator leads, and the database as its drivers may use it."""

    def __init__(self, engine: Engine, epoch: int) -> None:
        self.epoch = epoch
        self.over = False
        self.engine = fenced(engine, self._fence)

    def _fence(self, connection: Connection) -> None:
        if self.over or connection.scalar(_EPOCH) != self.epoch:
            raise Deposed(f"leadership {self.epoch} is over")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of trying to take the lease."""

    epoch: int  # of the new term; 0: another one has the lease
    seconds: float  # for how long it is held, by us or by the other
    since: float  # by our clock, and no later than the database began to count


class LeaseRecords:
    """The lease in the database."""

    def __init__(
        self, engine: Engine, holder: str, lease_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._holder = holder
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._renewing: Connection | None = None  # kept, so that renewing does not wait for one

    def take(self) -> Attempt:
        """Begin a new term, if the lease is free or was ours."""
        since = self._clock()
        with reading(self._engine) as session:  # who stands by should not wait for turns
            seconds = self._others_seconds(session)
        if seconds > 0:
            return Attempt(0, seconds, since)
        with transaction(self._engine) as session:
            since = self._clock()  # the turn may have been long in coming
            seconds = self._others_seconds(session)
            if seconds > 0:
                return Attempt(0, seconds, since)
            now = session.scalar(select(_NOW)) or 0.0
            row = session.get(LeadershipRow, _NAME)
            epoch = row.epoch + 1 if row else 1
            session.merge(
                LeadershipRow(
                    name=_NAME,
                    holder=self._holder,
                    epoch=epoch,
                    expires_at=now + self._lease_seconds,
                )
            )
            return Attempt(epoch, self._lease_seconds, since)

    def _others_seconds(self, session: Session) -> float:
        """For how long another one has the lease."""
        row = session.get(LeadershipRow, _NAME)
        if row is None or row.holder == self._holder:
            return 0.0
        return row.expires_at - (session.scalar(select(_NOW)) or 0.0)

    def renew(self, epoch: int) -> bool:
        """Keep the lease; false if another term has begun.

        One statement, which waits for no turn: a busy database must not cost us the lease.
        """
        with passing_errors_are_unavailable(self._engine):
            if self._renewing is None:
                connection = self._engine.connect()
                self._renewing = connection.execution_options(isolation_level="AUTOCOMMIT")
                self._renewing.detach()
            try:
                renewed = self._renewing.execute(
                    update(LeadershipRow)
                    .where(LeadershipRow.name == _NAME, LeadershipRow.epoch == epoch)
                    .values(expires_at=_NOW + self._lease_seconds)
                )
            except DBAPIError:
                connection, self._renewing = self._renewing, None
                connection.close()
                raise
            return renewed.rowcount == 1

    def release(self, epoch: int) -> None:
        """Let the lease of this term end now."""
        mine = (LeadershipRow.name == _NAME, LeadershipRow.epoch == epoch)
        with transaction(self._engine) as session:
            session.execute(update(LeadershipRow).where(*mine).values(expires_at=0.0))


class Leader(Protocol):
    """What is done only by the one who leads."""

    def lead(self, term: Term) -> None:
        """Begin; called again whenever the lease is renewed, to see that nothing is left out."""

    def follow(self) -> None:
        """Leave off. Must not wait for anything."""


class Leadership:
    """Takes the lease when it is free, and keeps it."""

    def __init__(
        self,
        engine: Engine,
        replica: str,
        lease_seconds: float,
        leader: Leader,
        switchboard: Switchboard,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._replica = replica
        self._lease = LeaseRecords(engine, replica, lease_seconds, clock)
        self._lease_seconds = lease_seconds
        self._leader = leader
        self._switchboard = switchboard
        self._metrics = metrics
        self._clock = clock
        self._changed = threading.Condition()
        self._term: Term | None = None
        self._good_until = 0.0  # by our clock; the lease itself ends a little later
        self._look_at = 0.0
        self._closing = False
        switchboard.listen(Topic.TERM, self._look_now)

    def start(self) -> None:
        """Begin to lead, or to wait for it."""
        for work in (self._keep_asking, self._keep_watch):
            threading.Thread(target=work, name=f"leadership {work.__name__}", daemon=True).start()

    def close(self) -> None:
        """Leave off, and let another one lead at once."""
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
            log.warning("the lease is left to run out: %s", error)
        self._switchboard.post(Topic.TERM)

    # --- the threads ----------------------------------------------------------------------------

    def _keep_asking(self) -> None:
        """Renew the lease, or try to get it."""
        told = False
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._clock() >= self._look_at,
                    max(0.0, self._look_at - self._clock()),
                )
                if self._closing:
                    return
                self._look_at = self._clock() + self._lease_seconds / _RENEWALS_PER_LEASE
            try:
                self._ask()
                told = False
            except HfmdsError as error:
                if not told:
                    log.warning("cannot ask who leads: %s", error)
                told = True
            except Exception:  # this thread must not end: nobody would lead
                log.exception("unexpected error")

    def _keep_watch(self) -> None:
        """Step down when the lease was not renewed in time, even while somebody is asking."""
        while True:
            with self._changed:
                left = self._good_until - self._clock() if self._term else None
                if not self._closing and (left is None or left > 0):
                    self._changed.wait(left)
                if self._closing:
                    return
                late = self._term if self._clock() >= self._good_until else None
            if late:
                self._step_down(late, "the lease could not be renewed in time")

    def _ask(self) -> None:
        asked_at, term = self._clock(), self._term
        if term is None:
            attempt = self._lease.take()
            asked_at = attempt.since
            if not attempt.epoch:
                with self._changed:
                    self._look_at = min(self._look_at, asked_at + attempt.seconds)
                return
            term = Term(self._engine, attempt.epoch)
            who = {"replica": self._replica, "epoch": term.epoch}
            log.info("this coordinator leads", extra=who)
            self._metrics.set_leading(True)
        elif not self._lease.renew(term.epoch):
            self._step_down(term, "another coordinator leads")
            return
        with self._changed:
            if self._closing or term.over:
                return
            self._term = term
            # A little early: stopping takes time, too.
            self._good_until = asked_at + 0.9 * self._lease_seconds
            self._changed.notify_all()
        self._leader.lead(term)

    def _step_down(self, term: Term, reason: str) -> None:
        with self._changed:
            if term.over:
                return
            term.over = True
            self._term = None
            self._changed.notify_all()
        log.warning("no longer leads: %s", reason, extra={"replica": self._replica})
        self._metrics.set_leading(False)
        self._leader.follow()

    def _look_now(self, _: tuple[str, ...]) -> None:
        with self._changed:
            self._look_at = 0.0
            self._changed.notify_all()
