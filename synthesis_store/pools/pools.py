"""The life of a pool: opened, filled batch by batch, sealed into a snapshot, served.

Knows neither protobuf nor gRPC. Everything but `put` is synchronous and may block:
on an event loop, call it through `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Engine

from hfmds.algorithm.leakage.leakage_limits import TooMuchLeakage
from hfmds.domain.digest import Digest
from hfmds.domain.pools import (
    Collected,
    Contribution,
    PoolSpec,
    PoolState,
    PoolStatus,
    Snapshot,
    Withdrawal,
)
from hfmds.domain.tasks import UploadState
from hfmds.errors import (
    HfmdsError,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotFound,
    TooLate,
    Unavailable,
    WrongState,
)
from hfmds.service.monitoring.logs import log_context
from hfmds.storage.blobs import CHUNK_BYTES
from hfmds.wire.chunks import Content, receive, require_place, upload_state
from synthesis_store.access.pseudonyms import Identity
from synthesis_store.events import STORE, StoreEvents
from synthesis_store.monitoring.inventory import Stocktaking
from synthesis_store.monitoring.metrics import StoreMetrics
from synthesis_store.pools.admission import most_batch_bytes, require_fit, require_weights
from synthesis_store.pools.batch_uploads import Upload, Uploads, uploader
from synthesis_store.pools.leakage_gate import final_halt_reason, halt_reason, measure
from synthesis_store.pools.pool_records import BatchKey, Place, PoolRecords
from synthesis_store.retention.blob_references import Contents
from synthesis_store.retention.retention import Retention
from synthesis_store.retention.withdrawals import Withdrawals
from synthesis_store.serving.serving import Serving
from synthesis_store.snapshots.missing_content import Losses
from synthesis_store.snapshots.snapshot_builder import SHARD_SAMPLES, ContentMissing, Sealing
from synthesis_store.snapshots.snapshot_records import Made, Sealed, SnapshotRecords
from synthesis_store.states import refusal_of_batches

log = logging.getLogger(__name__)

MAX_CLASSES = 65_536  # a snapshot's description counts each of them


# What comes in one go is looked at when it is there: a trip to a thread costs more than to have it
# come in vain. Of more than that, not a byte is waited for that is not wanted.
_SMALL_BYTES = 4 * CHUNK_BYTES


class _InPool(Exception):
    """A batch need not be taken, as its pool has it."""


class Pools:
    """All pools of this store and the snapshots they became."""

    def __init__(
        self,
        engine: Engine,
        content: Content,
        metrics: StoreMetrics,
        now: Callable[[], datetime],
        *,
        replica: str,
        max_blob_bytes: int,
        upload_ttl: timedelta,
        keep_snapshots: int,
    ) -> None:
        identity = Identity(engine)
        self.events = StoreEvents(engine, identity.log_id, now)
        self.contents = Contents(engine, content.blobs, self.events, replica, now)
        self.records = PoolRecords(engine, self.contents, self.events, now, halt_reason)
        self.sealed_records = SnapshotRecords(engine, self.contents, self.events)
        self.withdrawals = Withdrawals(engine, self.contents, self.events, identity, now)
        self.retention = Retention(
            engine, self.contents, self.events, self.records, self.withdrawals, keep_snapshots
        )
        self.sealing = Sealing(self.sealed_records, self.contents, content.blobs, identity, now)
        self.losses = Losses(
            engine, self.sealed_records, self.contents, content.blobs, self.events, identity, now
        )
        self.serving = Serving(self.sealed_records, content.blobs)
        self._content = content
        self._metrics = metrics
        metrics.watch(Stocktaking(engine, identity.log_id, now))
        self._now = now
        self._max_blob_bytes = max_blob_bytes
        self._upload_ttl = upload_ttl
        self._one_seals = threading.Lock()
        self.uploads = Uploads()
        self._refusals_lock = threading.Lock()
        self._refusals: dict[str, Counter[str]] = {}  # by pool, since they were last noted

    def recover(self) -> None:
        """Clear what the process before this one left half done."""
        swept = self.contents.sweep_left_over(at_start=True)
        self.withdrawals.settle()
        purged = self._purge_uploads()
        log.info("store recovered", extra={"loose_blobs": swept.blobs, "stale_uploads": purged})

    def open(
        self,
        pool_id: str,
        spec: PoolSpec,
        referenced: Sequence[str] = (),
        hung_up: Callable[[], bool] = lambda: False,
    ) -> list[str]:
        """Open a pool; repeating it changes nothing. Returns the devices it takes nothing of.

        For a caller who has hung up, none is opened.
        """
        if spec.model.classes > MAX_CLASSES:
            raise InvalidInput(
                f"pool {pool_id}: model.classes is {spec.model.classes}; "
                f"it must be at most {MAX_CLASSES}"
            )
        with log_context(run=spec.run_id, round=spec.round_number, pool=pool_id):
            if self.records.open(pool_id, spec, referenced, hung_up):
                log.info("pool opened")
        return self.records.withdrawn(spec.run_id)

    def status(self, pool_id: str) -> PoolStatus:
        """A pool and what is in it."""
        return self.records.status(pool_id)

    # --- filling --------------------------------------------------------------------------------

    def query(self, key: BatchKey) -> UploadState:
        """How much of a batch is here."""
        if self.records.place(key).has_batch:
            return UploadState(key.digest.size_bytes, complete=True)
        if self._content.blobs.contains(key.digest):  # from another device or pool: only put it
            return UploadState(key.digest.size_bytes, complete=False)
        offset = self._content.staging.offset(uploader(key), key.digest)
        return UploadState(offset, complete=False)

    async def put(
        self,
        key: BatchKey,
        offset: int,
        chunks: AsyncIterator[bytes | memoryview],
        weights: Digest | None = None,
    ) -> bool:
        """Take a device's batch into its pool; true if it was there before.

        `weights` is the model it was made with, if the device says so. On return the batch is
        durable. One that is refused leaves nothing behind; one whose upload broke can be resumed.
        """
        with log_context(pool=key.pool_id, device=key.device_id):
            begun: tuple[PoolSpec, str] | None = None
            taken = settled = False

            def begin() -> Content:
                nonlocal begun
                begun = begun or self._begin(key, offset, weights)
                return self._content

            def accept() -> None:
                nonlocal taken, settled
                assert begun is not None
                taken = self._accept(key, *begun)
                settled = True

            try:
                if key.digest.size_bytes > _SMALL_BYTES:
                    await _to_its_end(begin)
                await receive(begin, uploader(key), key.digest, offset, chunks, accept)
                return not taken
            except _InPool:
                return True
            except HfmdsError as error:
                if not isinstance(error, Unavailable):
                    await asyncio.to_thread(self._note_refusal, key.pool_id, error)
                if isinstance(error, InvalidInput | LimitExceeded | NotAllowed | TooLate):
                    await asyncio.to_thread(self._discard, key, begun[1] if begun else "")
                    settled = True
                raise
            finally:
                if begun is not None and not settled:
                    await self._leave(key, begun[1])

    def _begin(self, key: BatchKey, offset: int, weights: Digest | None) -> tuple[PoolSpec, str]:
        """Get ready for an upload: what the pool takes, and the mark of the content to come.

        Raises _InPool if it has the batch.
        """
        if key.digest.size_bytes > _SMALL_BYTES:  # else its bytes are here, and staging looks
            self._require_lacking(key, self.records.place(key), weights)
            state = upload_state(self._content, uploader(key), key.digest)
            if not state.complete:
                require_place(key.digest, state, offset)
        discarded: list[Upload] = []

        def begin(place: Place) -> str:
            self._require_lacking(key, place, weights)
            # A device has one upload under way in a pool, the one it began last.
            before, others = self.uploads.begin(key, self._now())
            discarded.extend(others)
            return before

        try:
            place, mark = self.records.expect(key, begin)
        finally:
            for upload in discarded:
                self._discard(upload.key, upload.mark)
        if place.has_batch:
            raise _InPool
        return place.spec, mark

    def _require_lacking(self, key: BatchKey, place: Place, weights: Digest | None) -> None:
        """Raises _InPool if the pool has the batch.

        Refuses what can be refused before any byte is kept.
        """
        if place.has_batch:
            raise _InPool
        if place.state is not PoolState.OPEN:
            raise refusal_of_batches(key.pool_id, place.state, place.state_reason)
        require_weights(weights, place.spec, f"batch {key.digest}")
        limit = min(self._max_blob_bytes, most_batch_bytes(place.spec))
        if key.digest.size_bytes > limit:
            raise LimitExceeded(
                f"batch {key.digest}: {key.digest.size_bytes} bytes are announced, "
                f"pool {key.pool_id} takes {limit} from a device"
            )

    def _accept(self, key: BatchKey, spec: PoolSpec, mark: str) -> bool:
        """Check the content that has arrived and make it the device's batch."""
        batch = self.sealing.read(key.digest, to_check=True)
        if len(batch) > SHARD_SAMPLES:  # cut up when the pool is sealed, and not read before
            self._content.blobs.set_aside(key.digest)
        require_fit(batch, spec, f"batch {key.digest}")
        measured = measure(batch, spec.policy)
        accepted = self.records.record_batch(key, measured, mark)
        left = self.uploads.end(key)
        if left or not accepted:
            self.contents.give_up([(key.digest, mark), (key.digest, left)])
        if not accepted:
            return False
        self._metrics.count_batch(len(batch), measured)
        with log_context(run=spec.run_id, round=spec.round_number):
            log.info("batch accepted", extra={"batch": str(key.digest), "samples": len(batch)})
        return True

    async def _leave(self, key: BatchKey, mark: str) -> None:
        """An upload broke. Calls of one device that overlap must not leave more than one note."""
        nobodys = self.uploads.leave(key, mark)
        if nobodys:
            try:
                await asyncio.to_thread(self.contents.give_up, [(key.digest, nobodys)])
            except HfmdsError as error:  # then after a day; why the upload broke is what counts
                log.warning("a broken upload is not cleared away yet: %s", error)

    def _discard(self, key: BatchKey, mark: str = "") -> None:
        left = self.uploads.end(key)
        self._content.staging.discard(uploader(key), key.digest)
        self.contents.give_up([(key.digest, mark), (key.digest, left)])

    def _note_refusal(self, pool_id: str, error: HfmdsError) -> None:
        reason = self._metrics.count_refusal(error)
        log.info("batch refused", extra={"reason": str(error)})
        if isinstance(error, TooMuchLeakage):
            self.records.count_leaking_batch(pool_id)
        if not isinstance(error, NotFound):  # of pools that are not there, anybody can name many
            with self._refusals_lock:
                self._refusals.setdefault(pool_id, Counter())[reason] += 1

    def note_refusals(self) -> None:
        """Write to the log how many batches were refused since it was last done."""
        with self._refusals_lock:
            counts, self._refusals = self._refusals, {}
        try:
            if counts:
                self.records.note_refusals(counts)
        except BaseException:
            with self._refusals_lock:  # whoever looks next writes them
                for pool_id, reasons in counts.items():
                    self._refusals.setdefault(pool_id, Counter()).update(reasons)
            raise

    # --- sealing --------------------------------------------------------------------------------

    def seal(self, pool_id: str, named: Iterable[Contribution]) -> Sealed:
        """Make the named batches that are here the pool's snapshot; again, it gives the same."""
        with self._one_seals:  # a repeated call waits for the first, then finds its snapshot
            return self._seal(pool_id, frozenset(named))

    def seal_due(self) -> None:
        """Seal the pools whose quorum is there or whose deadline has passed; abandon empty ones."""
        for pool_id in self.records.due():
            if self.records.abandon_if_empty(pool_id):
                log.info("pool abandoned", extra={"pool": pool_id})
                continue
            try:
                self.seal(pool_id, self.sealed_records.batches(pool_id))
            except HfmdsError as error:  # whoever looks next tries again
                log.warning("pool %s is not sealed yet: %s", pool_id, error)
            except Exception:  # others must not wait for this one
                log.exception("pool %s is not sealed yet", pool_id)

    def stop_sealing(self) -> None:
        """Seal no more; on return the seal that was under way is over, or given up."""
        self.sealing.stop()
        with self._one_seals:  # those who wait for it find that they are to stop
            pass

    def _seal(self, pool_id: str, named: frozenset[Contribution]) -> Sealed:
        before = self.sealed_records.sealed(pool_id, named)
        if before is not None:
            return before
        basis = self.sealed_records.basis(pool_id, named)
        with log_context(run=basis.spec.run_id, round=basis.spec.round_number, pool=pool_id):
            if not basis.present:
                raise WrongState(
                    f"pool {pool_id} cannot be sealed: "
                    f"none of the {len(named)} named batches is in it"
                )
            try:
                made = self.sealing.make(basis, self.losses.given_up(pool_id))
            except ContentMissing as error:
                if self.sealed_records.basis(pool_id, named) != basis:
                    raise  # it was withdrawn or replaced meanwhile, and rightly deleted
                if not self.losses.give_up(basis, error.digest):
                    raise
                return self._seal(pool_id, named)
            try:
                self._require_harmless(made)
                sealed = self.sealed_records.record(made, named, basis)
            finally:  # shards that came to nothing
                self.contents.give_up(made.marks.items())
            self.losses.forget(pool_id)
            if sealed.snapshot is made.snapshot:
                self._announce(sealed)
            return sealed

    def _require_harmless(self, made: Made) -> None:
        """Halt a pool of which a snapshot would give too much away."""
        snapshot = made.snapshot
        reason = final_halt_reason(snapshot.spec.policy, made.percentiles)
        if reason:
            self.records.halt(snapshot.pool_id, reason)
            raise WrongState(f"pool {snapshot.pool_id} is halted: {reason}")

    def _announce(self, sealed: Sealed) -> None:
        snapshot = sealed.snapshot
        self._purge_uploads()  # sealing is rare, so a good moment
        self._metrics.count_duplicates(snapshot)
        log.info(
            "pool sealed",
            extra={
                "snapshot": snapshot.snapshot_id,
                "shards": len(snapshot.shards),
                "samples": snapshot.samples,
                "duplicates": snapshot.duplicates,
                "near_duplicates": snapshot.near_duplicates,
                "near_duplicates_unknown": snapshot.near_duplicates_unknown,
                "missing": len(sealed.missing),
                "psnr_paired_mean_db": round(snapshot.leakage.paired_mean, 2),
            },
        )

    # --- what nobody needs any more -------------------------------------------------------------

    def release(self, run_id: str, by: str = STORE) -> int:
        """Give up all that a run has by now; the number of its snapshots."""
        given_up = self.retention.release(run_id, by)
        log.info("run released", extra={"run": run_id, "snapshots": given_up})
        return given_up

    def collect(self, by: str = STORE, *, dry_run: bool = False) -> Collected:
        """Remove the snapshots that nobody needs, or say which ones they are."""
        collected = self.retention.collect(by, dry_run=dry_run)
        if collected.snapshot_ids and not dry_run:
            log.info(
                "snapshots collected",
                extra={
                    "snapshots": len(collected.snapshot_ids),
                    "erased_blobs": collected.erased_blobs,
                    "erased_bytes": collected.erased_bytes,
                },
            )
        return collected

    def withdraw(self, device_id: str, run_id: str = "", by: str = STORE) -> Withdrawal:
        """Take a device out of one run, or of all."""
        withdrawal = self.withdrawals.withdraw(device_id, run_id, by)
        for key in self.uploads.of_device(device_id):  # of another run it begins anew
            self._discard(key)
        log.info("device withdrawn", extra={"batches": withdrawal.removed_batches})
        return withdrawal

    # --- serving --------------------------------------------------------------------------------

    def snapshot(self, snapshot_id: str, start: int = 0, most: int | None = None) -> Snapshot:
        """A snapshot with its shards, or so many of them from a position on."""
        return self.sealed_records.snapshot(snapshot_id, start, most)

    def snapshots(
        self, run_id: str | None, after: str = "", most: int | None = None
    ) -> list[Snapshot]:
        """Snapshots of one run, or of all, newest first and without shards; or a page of them."""
        return self.sealed_records.snapshots(run_id, after, most)

    def clear_left_over(self) -> None:
        """Remove what uploads have left that nobody goes on with."""
        self._purge_uploads()
        self.contents.sweep_left_over()
        self.withdrawals.settle()

    def _purge_uploads(self) -> int:
        now, staging = self._now(), self._content.staging
        purged = staging.purge(self._upload_ttl.total_seconds(), now.timestamp())
        for key in self.uploads.begun_before(now - self._upload_ttl):
            if not staging.offset(uploader(key), key.digest):  # else bytes still come
                self._discard(key)
        return purged


async def _to_its_end(work: Callable[[], object]) -> None:
    """Do it in a thread, and leave it only when it is done, also if the caller hangs up."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})
        raise
