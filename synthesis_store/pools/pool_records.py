"""Pools and the batches in them, as the database has them.

Every change is one transaction: it happens whole or not at all, whenever the process is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from sqlalchemy import (
    Connection,
    Engine,
    String,
    and_,
    bindparam,
    delete,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from hfmds.domain.digest import Digest
from hfmds.domain.histograms import LeakageHistograms
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import PoolSpec, PoolState, PoolStatus
from hfmds.errors import Conflict, LimitExceeded, NotAllowed, NotFound, Unavailable
from hfmds.state_machine import require_transition
from hfmds.storage.database import changing, looking, reading, session_within, transaction
from hfmds.storage.prepared import Prepared
from hfmds.wire.conversions.records import (
    decode_histograms,
    decode_pool_spec,
    encode_histograms,
    encode_pool_spec,
)
from synthesis_store.events import StoreEventKind, StoreEvents
from synthesis_store.pools.leakage_gate import Measured
from synthesis_store.pools.pool_totals import AnyRow, Totals, columns_of, measured_of, totals_of
from synthesis_store.retention.blob_references import Contents, loosen
from synthesis_store.retention.withdrawals import (
    is_withdrawn,
    refusal_of_withdrawn,
    withdrawn_devices,
)
from synthesis_store.states import POOL_TRANSITIONS, refusal_of_batches
from synthesis_store.tables import BatchRow, PoolRow, RunReferenceRow, SnapshotRow

_OPEN, _SEALED = PoolState.OPEN.name, PoolState.SEALED.name
# Not through the ORM, and composed once: these are asked with every batch.
_POOL_ID, _DEVICE_ID = bindparam("pool", type_=String()), bindparam("device", type_=String())
_THIS_POOL = PoolRow.pool_id == _POOL_ID
_THIS_BATCH = and_(BatchRow.pool_id == _POOL_ID, BatchRow.device_id == _DEVICE_ID)
_PLACE = Prepared(
    select(
        PoolRow.spec,
        PoolRow.state,
        PoolRow.state_reason,
        PoolRow.devices,
        PoolRow.samples,
        PoolRow.leaking_samples,
        PoolRow.leakage,
        BatchRow.sha256.label("batch_sha256"),
        BatchRow.size_bytes.label("batch_bytes"),
        is_withdrawn(_DEVICE_ID, RunReferenceRow.run_id).label("is_withdrawn"),
    )
    .join(RunReferenceRow)
    .outerjoin(BatchRow, _THIS_BATCH)
    .where(_THIS_POOL)
)
_BATCH = Prepared(
    select(BatchRow.samples, BatchRow.leaking_samples, BatchRow.leakage).where(_THIS_BATCH)
)
_ADD_BATCH = Prepared(insert(BatchRow))
_REMOVE_BATCH = Prepared(delete(BatchRow).where(_THIS_BATCH))
_CHANGE_POOL = Prepared(update(PoolRow).where(_THIS_POOL))

MAX_WITHDRAWN_DEVICES = 20_000
"""How many are told of: their ids must fit in a message."""

_KIND_OF_END = {
    PoolState.HALTED: StoreEventKind.POOL_HALTED,
    PoolState.ABANDONED: StoreEventKind.POOL_ABANDONED,
}


@dataclass(frozen=True, slots=True, order=True)
class BatchKey:
    """Names a device's batch in a pool: the idempotency key of putting it."""

    pool_id: str
    device_id: str
    digest: Digest


@dataclass(frozen=True, slots=True)
class Place:
    """Where a batch would go: the pool, and whether the batch is in it."""

    spec: PoolSpec
    state: PoolState
    state_reason: str
    has_batch: bool


HaltReason = Callable[[PoolPolicy, LeakageHistograms], str]
"""Why a pool with these totals must be halted; empty: it need not be."""


class PoolRecords:
    """What the store remembers of pools that are not snapshots yet."""

    def __init__(
        self,
        engine: Engine,
        contents: Contents,
        events: StoreEvents,
        now: Callable[[], datetime],
        halt_reason: HaltReason,
    ) -> None:
        self._engine = engine
        self._contents = contents
        self._events = events
        self._now = now
        self._halt_reason = halt_reason

    def open(
        self,
        pool_id: str,
        spec: PoolSpec,
        referenced: Sequence[str] = (),
        hung_up: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Open the pool; false if it had been opened with the same specification.

        Unavailable if the caller has hung up.
        """
        with transaction(self._engine) as session:
            row = session.get(PoolRow, pool_id)
            if row is not None:
                if decode_pool_spec(row.spec) != spec:
                    raise Conflict(
                        f"pool {pool_id} was opened before with another specification; "
                        "choose another id"
                    )
                return False
            if hung_up():
                # It may have released the run while this waited for its turn: the pool would stay
                # open for ever. If it has not, it asks again.
                raise Unavailable(f"pool {pool_id} is not opened: who asked for it has hung up")
            run = _live_run(session, spec.run_id)
            run.referenced = list(referenced)
            session.flush()  # the pool's foreign key needs its number
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
        """Devices of which pools of the run take nothing, by id."""
        with reading(self._engine) as session:
            return withdrawn_devices(session, run_id, MAX_WITHDRAWN_DEVICES)

    def status(self, pool_id: str) -> PoolStatus:
        """The pool and what is in it, or NotFound."""
        snapshot = select(SnapshotRow.snapshot_id).where(SnapshotRow.pool_id == pool_id)
        with reading(self._engine) as session:
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

    def place(self, key: BatchKey, within: Connection | None = None) -> Place:
        """Where the batch would go, or NotFound; NotAllowed if the device was withdrawn.

        It is looked up by itself, or `within` what is being changed.
        """
        with nullcontext(within) if within else looking(self._engine) as connection:
            row = _place(connection, key)
        has_batch = _has(row, key.digest)
        if row.is_withdrawn and not has_batch:
            raise refusal_of_withdrawn(key.device_id)
        return Place(_spec(row.spec), PoolState[row.state], row.state_reason, has_batch)

    def expect(self, key: BatchKey, begin: Callable[[Place], str]) -> tuple[Place, str]:
        """Note that the batch's content may come: where it would go, and its mark.

        `begin` is told where, raises what speaks against it, and names the mark of an earlier
        upload, if any, in whose place this one comes. Of a batch that the pool has, nothing is
        noted, and on return that is durable: it may be of a transaction that was not committed yet.
        """
        with changing(self._engine) as connection:
            place = self.place(key, connection)
            if place.has_batch:
                return place, ""
            return place, self._contents.expect(key.digest, begin(place), connection)

    def record_batch(self, key: BatchKey, measured: Measured, mark: str = "") -> bool:
        """Make stored content the device's batch, in place of an earlier one.

        False if it was that already. Refused if the pool is over, or the device withdrawn, or if
        the pool would have too many samples. A batch with which the pool gives away too much halts
        it, and is refused with it.
        """
        given_up: list[Digest] = []
        with changing(self._engine) as connection:
            pool = _place(connection, key)
            spec = _spec(pool.spec)
            if _has(pool, key.digest):
                return False
            if pool.is_withdrawn:
                raise refusal_of_withdrawn(key.device_id)
            if pool.state != _OPEN:
                raise refusal_of_batches(key.pool_id, PoolState[pool.state], pool.state_reason)
            self._contents.claim(connection, key.digest, mark)
            totals = totals_of(pool)
            if pool.batch_sha256 is not None:
                before = Digest(pool.batch_sha256, pool.batch_bytes)
                given_up.append(before)
                loosen(connection, before)
                batch = _BATCH.first(connection, _names(key))
                totals = totals.minus(measured_of(batch))
                _REMOVE_BATCH.change(connection, _names(key))
            totals = totals.plus(measured)
            _require_room(key.pool_id, totals, spec.policy)
            row = {
                "pool_id": key.pool_id,
                "device_id": key.device_id,
                "sha256": key.digest.sha256,
                "size_bytes": key.digest.size_bytes,
                "accepted_at": self._now(),
            }
            _ADD_BATCH.change(connection, row | columns_of(measured))
            _CHANGE_POOL.change(connection, {"pool": key.pool_id, **totals.columns()})
            halted = self._halt_reason(spec.policy, totals.leakage)
            if halted:
                given_up += self._halt(connection, key.pool_id, halted)
        if given_up:
            self._contents.sweep(given_up)
        if halted:
            raise NotAllowed(f"pool {key.pool_id} is halted: {halted}")
        return True

    def _halt(self, connection: Connection, pool_id: str, reason: str) -> list[Digest]:
        with session_within(connection) as session:
            pool = require_pool(session, pool_id)
            return self.end(session, pool, PoolState.HALTED, reason)

    def count_leaking_batch(self, pool_id: str) -> None:
        """Note that the pool refused a batch for its leakage."""
        with transaction(self._engine) as session:
            require_pool(session, pool_id).leaking_batches += 1

    def note_refusals(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Write to the log how many batches were refused, by pool and reason."""
        with transaction(self._engine) as session:
            for pool_id, reasons in sorted(counts.items()):
                self._events.append(
                    session, StoreEventKind.BATCHES_REFUSED, pool=pool_id, reasons=dict(reasons)
                )

    # --- ends -----------------------------------------------------------------------------------

    def due(self) -> list[str]:
        """Pools that are to be sealed now without being told, or abandoned."""
        ripe = or_(
            PoolRow.seals_at <= self._now(),
            and_(
                PoolRow.seal_quorum > 0, PoolRow.devices >= PoolRow.seal_quorum, PoolRow.samples > 0
            ),
        )
        query = select(PoolRow.pool_id).where(PoolRow.state == _OPEN, ripe)
        with reading(self._engine) as session:
            return list(session.scalars(query.order_by(PoolRow.opened_at, PoolRow.pool_id)))

    def abandon_if_empty(self, pool_id: str) -> bool:
        """Give up an open pool in which there is no sample at its deadline; whether it was one.

        Batches may be in it of which all samples are over the limits of leakage.
        """
        with transaction(self._engine) as session:
            pool = require_pool(session, pool_id)
            is_over = pool.seals_at is not None and pool.seals_at <= self._now()
            if pool.state != _OPEN or pool.samples or not is_over:
                return False
            reason = "nothing that it takes was in it at its deadline"
            given_up = self.end(session, pool, PoolState.ABANDONED, reason)
        self._contents.sweep(given_up)
        return True

    def halt(self, pool_id: str, reason: str) -> None:
        """Halt an open pool; one that is over stays as it is."""
        with transaction(self._engine) as session:
            pool = require_pool(session, pool_id)
            if pool.state != _OPEN:
                return
            given_up = self.end(session, pool, PoolState.HALTED, reason)
        self._contents.sweep(given_up)

    def end(self, session: Session, pool: PoolRow, state: PoolState, reason: str) -> list[Digest]:
        """End a pool that will be no snapshot; the content that is to be swept then."""
        require_transition(POOL_TRANSITIONS, PoolState[pool.state], state, f"pool {pool.pool_id}")
        pool.state, pool.state_reason = state.name, reason
        given_up = [row.digest for row in batches_of(session, pool.pool_id)]
        for digest in given_up:
            loosen(session.connection(), digest, state.value)
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
    """The pool's row, or NotFound."""
    row = session.get(PoolRow, pool_id)
    if row is None:
        raise missing_pool(pool_id)
    return row


def missing_pool(pool_id: str) -> NotFound:
    """What is said of a pool that is not there."""
    return NotFound(f"there is no pool {pool_id}; the coordinator opens it")


def batches_of(session: Session, pool_id: str) -> list[BatchRow]:
    """The batches that are, or were when it was sealed, in the pool."""
    return list(session.scalars(select(BatchRow).filter_by(pool_id=pool_id)))


def _place(connection: Connection, key: BatchKey) -> AnyRow:
    """A pool and the device's batch in it; NotFound if there is no such pool."""
    row: AnyRow | None = _PLACE.first(connection, _names(key))
    if row is None:
        raise missing_pool(key.pool_id)
    return row


def _names(key: BatchKey) -> dict[str, object]:
    return {"pool": key.pool_id, "device": key.device_id}


def _has(place: AnyRow, digest: Digest) -> bool:
    """Whether this is a batch of the pool; those of one that is no snapshot are erased."""
    if (place.batch_sha256, place.batch_bytes) != (digest.sha256, digest.size_bytes):
        return False
    return place.state in (_OPEN, _SEALED)


@lru_cache(maxsize=64)  # asked with every batch
def _spec(record: bytes) -> PoolSpec:
    return decode_pool_spec(record)


def _live_run(session: Session, run_id: str) -> RunReferenceRow:
    live = select(RunReferenceRow).where(RunReferenceRow.run_id == run_id)
    row = session.scalar(live.where(~RunReferenceRow.released))
    if row is None:
        row = RunReferenceRow(run_id=run_id, released=False)
        session.add(row)
    return row


def _require_room(pool_id: str, totals: Totals, policy: PoolPolicy) -> None:
    most = policy.max_pool_samples
    if most and totals.samples > most:
        raise LimitExceeded(
            f"pool {pool_id}: it would have {totals.samples} samples with this batch, "
            f"it takes {most}; who wants more sets pool.max_pool_samples of the run"
        )
