"""Pools and their batches in the database. Every change is one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from sqlalchemy import Connection, Engine, String, and_, bindparam, insert, or_, select, update
from sqlalchemy.orm import Session

from hfmds.domain.digest import Digest
from hfmds.domain.histograms import LeakageHistograms
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import PoolSpec, PoolState, PoolStatus
from hfmds.errors import Conflict, LimitExceeded, NotAllowed, NotFound, Unavailable
from hfmds.state_machine import require_transition
from hfmds.storage.database import read_connection, read_session, write_session
from hfmds.wire.conversions.records import (
    decode_histograms,
    decode_pool_spec,
    encode_histograms,
    encode_pool_spec,
)
from synthesis_store.content.orphans import Orphans
from synthesis_store.contributors.consent import is_withdrawn, withdrawn_devices
from synthesis_store.contributors.store_identity import StoreIdentity
from synthesis_store.events import StoreEventKind, StoreEvents
from synthesis_store.pools.leakage_gate import halt_reason
from synthesis_store.pools.pool_totals import BatchTotals, subtract_batch
from synthesis_store.states import POOL_TRANSITIONS, refusal_of_batches
from synthesis_store.tables import BatchRow, PoolRow, RunReferenceRow, SnapshotRow

MAX_WITHDRAWN_DEVICES = 20_000
"""The most device ids in one answer: they must fit in a message."""

_OPEN, _SEALED = PoolState.OPEN.name, PoolState.SEALED.name
_KIND_OF_END = {
    PoolState.HALTED: StoreEventKind.POOL_HALTED,
    PoolState.ABANDONED: StoreEventKind.POOL_ABANDONED,
}

# The statements of every upload, built once: the pool that a batch is for, with the device's
# present batch in it, and the two that record a batch.
_device_id = bindparam("device_id", type_=String)
_pool_id = bindparam("pool_id", type_=String)
_TARGET = (
    select(
        PoolRow.spec,
        PoolRow.state,
        PoolRow.state_reason,
        PoolRow.devices,
        PoolRow.samples,
        PoolRow.leaking_samples,
        PoolRow.leakage,
        BatchRow.sha256,
        BatchRow.size_bytes,
        is_withdrawn(_device_id, RunReferenceRow.run_id).label("is_withdrawn"),
    )
    .join(RunReferenceRow)
    .outerjoin(BatchRow, (BatchRow.pool_id == _pool_id) & (BatchRow.device_id == _device_id))
    .where(PoolRow.pool_id == _pool_id)
)
_SET_TOTALS = update(PoolRow).where(PoolRow.pool_id == bindparam("of_pool"))
_ADD_BATCH = insert(BatchRow)


@dataclass(frozen=True, slots=True, order=True)
class BatchKey:
    """The name of a device's batch in a pool: the idempotency key of PutBatch."""

    pool_id: str
    device_id: str
    digest: Digest


@dataclass(frozen=True, slots=True)
class TargetPool:
    """The pool that a batch is for."""

    spec: PoolSpec
    state: PoolState
    state_reason: str
    totals: BatchTotals
    present: Digest | None  # the batch that it has of the device
    has_batch: bool  # whether that is the batch in question


class PoolFull(LimitExceeded):
    """A pool has no room for the samples of another batch."""


class PoolRecords:
    """The rows of pools and their batches."""

    def __init__(
        self,
        engine: Engine,
        orphans: Orphans,
        events: StoreEvents,
        identity: StoreIdentity,
        now: Callable[[], datetime],
    ) -> None:
        self._engine = engine
        self._orphans = orphans
        self._events = events
        self._identity = identity
        self._now = now

    def open(
        self,
        pool_id: str,
        spec: PoolSpec,
        referenced: Sequence[str] = (),
        cancelled: threading.Event | None = None,
    ) -> bool:
        """Open a pool. Returns false if it was opened before with the same specification.

        Raises Conflict if it was opened with another one, and Unavailable if the call is
        `cancelled`.
        """
        with write_session(self._engine) as session:
            row = session.get(PoolRow, pool_id)
            if row is not None:
                if decode_pool_spec(row.spec) != spec:
                    raise Conflict(
                        f"pool {pool_id} was opened before with another specification; "
                        "choose another id"
                    )
                return False
            if cancelled is not None and cancelled.is_set():
                # While this call waited for its turn, the caller may have released the run. Then
                # nobody would ever end the pool.
                raise Unavailable(f"pool {pool_id} is not opened: the caller has hung up")
            run = _live_run(session, spec.run_id)
            run.referenced = list(referenced)
            session.flush()  # the pool's foreign key needs the run's number
            now, deadline = self._now(), spec.seal_deadline_seconds
            session.add(
                PoolRow(
                    pool_id=pool_id,
                    run_number=run.number,
                    spec=encode_pool_spec(spec),
                    opened_at=now,
                    state=_OPEN,
                    seal_quorum=spec.seal_quorum,
                    seals_at=now + timedelta(seconds=deadline) if deadline else None,
                    leakage=encode_histograms(LeakageHistograms()),
                )
            )
            self._events.append(
                session,
                StoreEventKind.POOL_OPENED,
                pool=pool_id,
                run=spec.run_id,
                round=spec.round_number,
            )
            return True

    def withdrawn(self, run_id: str) -> list[str]:
        """Return the ids of devices that cannot contribute to pools of the run."""
        with read_session(self._engine) as session:
            return withdrawn_devices(session, run_id, MAX_WITHDRAWN_DEVICES)

    def status(self, pool_id: str) -> PoolStatus:
        """Describe a pool, or raise NotFound."""
        snapshot = select(SnapshotRow.snapshot_id).where(SnapshotRow.pool_id == pool_id)
        with read_session(self._engine) as session:
            row = require_pool(session, pool_id)
            return PoolStatus(
                pool_id=pool_id,
                spec=decode_pool_spec(row.spec),
                state=PoolState[row.state],
                state_reason=row.state_reason,
                devices=row.devices,
                samples=row.samples,
                leaking_samples=row.leaking_samples,
                leaking_batches=row.leaking_batches,
                leakage=decode_histograms(row.leakage),
                opened_at=row.opened_at,
                snapshot_id=session.scalar(snapshot) or "",
            )

    # --- batches --------------------------------------------------------------------------------

    def target(self, key: BatchKey) -> TargetPool:
        """Return the pool that a batch is for.

        Raises NotFound if there is no such pool, and NotAllowed if the device was withdrawn and
        the pool does not have the batch.
        """
        with read_connection(self._engine) as connection:
            return _target(connection, key)

    def record_batch(self, key: BatchKey, added: BatchTotals) -> bool:
        """Make stored content the device's batch, and replace its earlier batch.

        Returns false if the pool has the batch already. Refuses the batch if the pool is not open,
        if the device was withdrawn, or if the pool would have too many samples. If the batch makes
        the pool leak too much, the pool is halted and the batch is refused.
        """
        given_up: list[Digest] = []
        with write_session(self._engine) as session:
            connection = session.connection()
            target = _target(connection, key)
            if target.has_batch:
                return False
            require_open(key.pool_id, target)
            self._orphans.rescue(session, [key.digest])
            totals = target.totals + added
            if target.present is not None:
                earlier = session.get_one(BatchRow, (key.pool_id, key.device_id))
                totals -= BatchTotals.of(earlier)
                given_up.append(target.present)
                session.delete(earlier)
                self._orphans.add(session, target.present)
                session.flush()  # the new row has the same key
            _require_room(key.pool_id, totals, target.spec.policy)
            connection.execute(
                _SET_TOTALS,
                {
                    "of_pool": key.pool_id,
                    "devices": totals.devices,
                    "samples": totals.samples,
                    "leaking_samples": totals.leaking_samples,
                    "leakage": encode_histograms(totals.leakage),
                },
            )
            connection.execute(
                _ADD_BATCH,
                {
                    "pool_id": key.pool_id,
                    "device_id": key.device_id,
                    "sha256": key.digest.sha256,
                    "size_bytes": key.digest.size_bytes,
                    "samples": added.samples,
                    "leaking_samples": added.leaking_samples,
                    "leakage": encode_histograms(added.leakage),
                    "accepted_at": self._now(),
                },
            )
            reason = halt_reason(target.spec.policy, totals.leakage)
            if reason:
                pool = require_pool(session, key.pool_id)
                given_up += self.end(session, pool, PoolState.HALTED, reason)
        self._orphans.delete(given_up)
        if reason:
            raise NotAllowed(f"pool {key.pool_id} is halted: {reason}")
        return True

    def count_leaking_batch(self, pool_id: str) -> None:
        """Count a batch that the pool refused for its leakage."""
        with write_session(self._engine) as session:
            require_pool(session, pool_id).leaking_batches += 1

    def write_refusals(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Write the numbers of refused batches to the event log, by pool and reason."""
        with write_session(self._engine) as session:
            for pool_id, reasons in sorted(counts.items()):
                self._events.append(
                    session, StoreEventKind.BATCHES_REFUSED, pool=pool_id, reasons=dict(reasons)
                )

    def remove_lost_batches(self, pool_id: str, lost: Set[Digest]) -> int:
        """Remove the batches whose content is lost from an open pool. Returns their number."""
        removed = 0
        with write_session(self._engine) as session:
            pool = require_pool(session, pool_id)
            if pool.state != _OPEN:  # another replica was faster
                return 0
            for row in batches_of(session, pool_id):
                if row.digest not in lost:
                    continue
                removed += 1
                subtract_batch(pool, row)
                session.delete(row)
                self._orphans.add(session, row.digest)  # the content may come back
                self._events.append(
                    session,
                    StoreEventKind.BATCH_LOST,
                    pool=pool_id,
                    contributor=self._identity.pseudonym(row.device_id),
                    samples=row.samples,
                )
        self._orphans.delete(lost)
        return removed

    # --- ends -----------------------------------------------------------------------------------

    def due(self) -> list[str]:
        """Return the pools that must be sealed or abandoned now, by quorum or deadline."""
        is_due = or_(
            PoolRow.seals_at <= self._now(),
            and_(
                PoolRow.seal_quorum > 0, PoolRow.devices >= PoolRow.seal_quorum, PoolRow.samples > 0
            ),
        )
        query = select(PoolRow.pool_id).where(PoolRow.state == _OPEN, is_due)
        with read_session(self._engine) as session:
            return list(session.scalars(query.order_by(PoolRow.opened_at, PoolRow.pool_id)))

    def abandon_if_empty(self, pool_id: str) -> bool:
        """Abandon an open pool that has no sample at its deadline. Returns whether it did.

        The pool may have batches whose samples are all over the leakage limits.
        """
        with write_session(self._engine) as session:
            pool = require_pool(session, pool_id)
            is_over = pool.seals_at is not None and pool.seals_at <= self._now()
            if pool.state != _OPEN or pool.samples or not is_over:
                return False
            reason = "no sample that it accepts was in it at its deadline"
            given_up = self.end(session, pool, PoolState.ABANDONED, reason)
        self._orphans.delete(given_up)
        return True

    def halt(self, pool_id: str, reason: str) -> None:
        """Halt a pool if it is open."""
        with write_session(self._engine) as session:
            pool = require_pool(session, pool_id)
            if pool.state != _OPEN:
                return
            given_up = self.end(session, pool, PoolState.HALTED, reason)
        self._orphans.delete(given_up)

    def end(self, session: Session, pool: PoolRow, state: PoolState, reason: str) -> list[Digest]:
        """Halt or abandon a pool within a transaction.

        Returns the content of its batches, which the caller deletes after the transaction.
        """
        require_transition(POOL_TRANSITIONS, PoolState[pool.state], state, f"pool {pool.pool_id}")
        pool.state, pool.state_reason = state.name, reason
        session.flush()
        given_up = [row.digest for row in batches_of(session, pool.pool_id)]
        for digest in dict.fromkeys(given_up):
            self._orphans.add(session, digest, state.value)
        self._events.append(
            session,
            _KIND_OF_END[state],
            pool=pool.pool_id,
            reason=reason,
            devices=pool.devices,
            samples=pool.samples,
        )
        return given_up


def require_pool(session: Session, pool_id: str) -> PoolRow:
    """Return the pool's row, or raise NotFound."""
    row = session.get(PoolRow, pool_id)
    if row is None:
        raise _unknown(pool_id)
    return row


def _unknown(pool_id: str) -> NotFound:
    return NotFound(f"there is no pool {pool_id}; the coordinator opens it")


def batches_of(session: Session, pool_id: str) -> list[BatchRow]:
    """Return the batches of a pool. Those of a sealed pool are the ones it had when sealed."""
    return list(session.scalars(select(BatchRow).filter_by(pool_id=pool_id)))


def require_open(pool_id: str, target: TargetPool) -> None:
    """Refuse a batch for a pool that is not open."""
    if target.state is not PoolState.OPEN:
        raise refusal_of_batches(pool_id, target.state, target.state_reason)


def _target(connection: Connection, key: BatchKey) -> TargetPool:
    names = {"pool_id": key.pool_id, "device_id": key.device_id}
    row = connection.execute(_TARGET, names).one_or_none()
    if row is None:
        raise _unknown(key.pool_id)
    present = None if row.sha256 is None else Digest(row.sha256, row.size_bytes)
    # A halted or abandoned pool has no batch.
    has_batch = present == key.digest and row.state in (_OPEN, _SEALED)
    if row.is_withdrawn and not has_batch:
        raise NotAllowed(
            f"device {key.device_id} was withdrawn from this store; it cannot contribute"
        )
    leakage = decode_histograms(row.leakage)
    return TargetPool(
        spec=_decoded_spec(row.spec),
        state=PoolState[row.state],
        state_reason=row.state_reason,
        totals=BatchTotals(row.devices, row.samples, row.leaking_samples, leakage),
        present=present,
        has_batch=has_batch,
    )


@lru_cache(maxsize=64)  # every upload needs it
def _decoded_spec(record: bytes) -> PoolSpec:
    return decode_pool_spec(record)


def _live_run(session: Session, run_id: str) -> RunReferenceRow:
    """Return the row of a run that is not released, and add it if there is none."""
    query = select(RunReferenceRow).where(RunReferenceRow.run_id == run_id)
    row = session.scalar(query.where(~RunReferenceRow.released))
    if row is None:
        row = RunReferenceRow(run_id=run_id, released=False)
        session.add(row)
    return row


def _require_room(pool_id: str, totals: BatchTotals, policy: PoolPolicy) -> None:
    limit = policy.max_pool_samples
    if limit and totals.samples > limit:
        raise PoolFull(
            f"pool {pool_id}: it would have {totals.samples} samples with this batch, but it "
            f"accepts {limit}; to accept more, set pool.max_pool_samples of the run"
        )
