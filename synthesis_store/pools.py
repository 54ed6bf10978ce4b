"""The life of a pool: opened, filled batch by batch, sealed into a snapshot, served for ever.

Knows neither protobuf nor gRPC. Everything but `put` and `shard` is synchronous and may block:
on an event loop, call it through `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime, timedelta

from hfmds.algorithm.types import SyntheticBatch
from hfmds.digest import Digest, digest_of
from hfmds.errors import (
    HfmdsError,
    InvalidInput,
    LimitExceeded,
    NotFound,
    TooLate,
    Unavailable,
    WrongState,
)
from hfmds.service.telemetry import log_context
from hfmds.wire.chunks import Content, outgoing, receive
from hfmds.wire.tensors import encode_batch, read_batch
from hfmds.wire.types import Contribution, PoolSpec, Shard, Snapshot, UploadState
from synthesis_store.admission import most_batch_bytes, require_fit
from synthesis_store.ledger import BatchKey, Ledger, Sealed, pool_is_sealed
from synthesis_store.merging import MergeWithSummary
from synthesis_store.metrics import StoreMetrics

log = logging.getLogger(__name__)

MAX_CLASSES = 65_536  # a snapshot's description counts each of them


class Pools:
    """All pools of this store and the snapshots they became."""

    def __init__(
        self,
        ledger: Ledger,
        content: Content,
        metrics: StoreMetrics,
        now: Callable[[], datetime],
        *,
        max_blob_bytes: int,
        upload_ttl: timedelta,
    ) -> None:
        self._ledger = ledger
        self._content = content
        self._metrics = metrics
        self._now = now
        self._max_blob_bytes = max_blob_bytes
        self._upload_ttl = upload_ttl
        self._pseudonym_key = ledger.pseudonym_key()
        self._sealing = threading.Lock()

    def recover(self) -> None:
        """Clear what the process before this one left half done; show what is here."""
        swept = self._ledger.sweep()
        purged = self._purge_uploads()
        self._metrics.show_inventory(self._ledger.inventory())
        for newest in self._ledger.snapshots(limit=1):
            self._metrics.show_newest(newest)
        log.info("store recovered", extra={"loose_blobs": swept, "stale_uploads": purged})

    def open(self, pool_id: str, spec: PoolSpec) -> None:
        """Open a pool; repeating it changes nothing."""
        if spec.model.classes > MAX_CLASSES:
            raise InvalidInput(
                f"pool {pool_id}: model.classes is {spec.model.classes}; "
                f"it must be at most {MAX_CLASSES}"
            )
        with log_context(run=spec.run_id, round=spec.round_number, pool=pool_id):
            if self._ledger.open_pool(pool_id, spec):
                self._metrics.show_inventory(self._ledger.inventory())
                log.info("pool opened")

    # --- filling --------------------------------------------------------------------------------

    def query(self, key: BatchKey) -> UploadState:
        """How much of a batch is here."""
        self._ledger.pool(key.pool_id)
        if self._ledger.has_batch(key):
            return UploadState(key.digest.size_bytes, complete=True)
        if self._content.blobs.contains(key.digest):  # from another device or pool: only put it
            return UploadState(key.digest.size_bytes, complete=False)
        offset = self._content.staging.offset(_uploader(key), key.digest)
        return UploadState(offset, complete=False)

    async def put(self, key: BatchKey, offset: int, chunks: AsyncIterator[bytes]) -> bool:
        """Take a device's batch into its pool; true if it was there before.

        On return it is durable. A batch that is refused leaves nothing behind; one whose upload
        broke can be resumed.
        """
        with log_context(pool=key.pool_id, device=key.device_id):
            try:
                if await asyncio.to_thread(self._is_present, key):
                    return True
                await asyncio.to_thread(self._ledger.expect_content, key.digest)
                await receive(self._content, _uploader(key), key.digest, offset, chunks)
                return not await asyncio.to_thread(self._accept, key)
            except HfmdsError as error:
                if not isinstance(error, Unavailable):
                    self._metrics.count_refusal(error)
                    log.info("batch refused", extra={"reason": str(error)})
                if isinstance(error, InvalidInput | LimitExceeded | TooLate):
                    await asyncio.to_thread(self._discard, key)
                raise

    def _is_present(self, key: BatchKey) -> bool:
        """Whether there is nothing to take; refuses what can be refused before any byte."""
        pool = self._ledger.pool(key.pool_id)
        if self._ledger.has_batch(key):
            return True
        if pool.sealed:
            raise pool_is_sealed(key.pool_id)
        limit = min(self._max_blob_bytes, most_batch_bytes(pool.spec))
        if key.digest.size_bytes > limit:
            raise LimitExceeded(
                f"batch {key.digest}: {key.digest.size_bytes} bytes are announced, "
                f"pool {key.pool_id} takes {limit} from a device"
            )
        return False

    def _accept(self, key: BatchKey) -> bool:
        """Check the content that has arrived and make it the device's batch."""
        spec = self._ledger.pool(key.pool_id).spec
        batch = self._read(key.digest, only_known=True)
        require_fit(batch, spec, f"batch {key.digest}")
        if not self._ledger.record_batch(key, len(batch)):
            return False
        self._metrics.accepted_samples.inc(len(batch))
        with log_context(run=spec.run_id, round=spec.round_number):
            log.info("batch accepted", extra={"batch": str(key.digest), "samples": len(batch)})
        return True

    def _discard(self, key: BatchKey) -> None:
        self._content.staging.discard(_uploader(key), key.digest)
        self._ledger.sweep([key.digest])

    # --- sealing and serving --------------------------------------------------------------------

    def seal(self, pool_id: str, named: Iterable[Contribution]) -> Sealed:
        """Make the named batches that are here the pool's snapshot; again, it gives the same."""
        with self._sealing:  # a repeated call waits for the first, then finds its snapshot
            return self._seal(pool_id, frozenset(named))

    def _seal(self, pool_id: str, named: frozenset[Contribution]) -> Sealed:
        before = self._ledger.sealed(pool_id, named)
        if before is not None:
            return before
        spec = self._ledger.pool(pool_id).spec
        with log_context(run=spec.run_id, round=spec.round_number, pool=pool_id):
            present = self._ledger.present(pool_id, named)
            if not present:
                raise WrongState(
                    f"pool {pool_id} cannot be sealed: "
                    f"none of the {len(named)} named batches is in it"
                )
            made = self._merge(pool_id, spec, present)
            try:
                sealed = self._ledger.record_snapshot(made, named, present)
            finally:  # shards that came to nothing
                self._ledger.sweep(shard.digest for shard in made.shards)
            if sealed.snapshot is made:
                self._announce(sealed)
            return sealed

    def _merge(
        self, pool_id: str, spec: PoolSpec, contributions: Iterable[Contribution]
    ) -> Snapshot:
        """The batches as a snapshot whose shards are stored, but which nobody knows yet."""
        merge = MergeWithSummary(spec.model.classes)
        shards = []
        for contribution in contributions:
            batch = self._read(contribution.batch)
            kept = merge.add(batch)
            if len(kept):
                digest = contribution.batch if kept is batch else self._store(encode_batch(kept))
                shards.append(Shard(digest, len(kept), self._pseudonym(contribution.device_id)))
        return Snapshot(
            snapshot_id=_snapshot_id(pool_id, shards),
            pool_id=pool_id,
            spec=spec,
            samples=merge.samples,
            class_histogram=merge.class_histogram,
            duplicates=merge.duplicates,
            leakage=merge.leakage(),
            sealed_at=self._now(),
            size_bytes=sum(shard.digest.size_bytes for shard in shards),
            shards=tuple(shards),
        )

    def _announce(self, sealed: Sealed) -> None:
        snapshot = sealed.snapshot
        self._purge_uploads()  # sealing is rare, so a good moment
        self._metrics.duplicate_samples.inc(snapshot.duplicates)
        self._metrics.show_newest(snapshot)
        self._metrics.show_inventory(self._ledger.inventory())
        log.info(
            "pool sealed",
            extra={
                "snapshot": snapshot.snapshot_id,
                "shards": len(snapshot.shards),
                "samples": snapshot.samples,
                "duplicates": snapshot.duplicates,
                "missing": len(sealed.missing),
                "psnr_paired_mean_db": round(snapshot.leakage.paired_mean, 2),
            },
        )

    def snapshot(self, snapshot_id: str) -> Snapshot:
        """A snapshot with its shards."""
        return self._ledger.snapshot(snapshot_id)

    def snapshots(self, run_id: str | None) -> list[Snapshot]:
        """Snapshots of one run, or of all, newest first and without shards."""
        return self._ledger.snapshots(run_id)

    async def shard(self, snapshot_id: str, digest: Digest, offset: int) -> AsyncIterator[bytes]:
        """The content of a snapshot's shard from an offset on, in chunks."""
        await asyncio.to_thread(self._ledger.require_shard, snapshot_id, digest)
        async for chunk in outgoing(self._content.blobs, digest, offset):
            yield chunk

    # --- content --------------------------------------------------------------------------------

    def _read(self, digest: Digest, *, only_known: bool = False) -> SyntheticBatch:
        try:
            path = self._content.blobs.local_path(digest)
            return read_batch(path, f"batch {digest}", only_known=only_known)
        except (NotFound, FileNotFoundError) as error:
            raise Unavailable(f"batch {digest} was removed meanwhile; try again") from error

    def _store(self, data: bytes) -> Digest:
        self._ledger.expect_content(digest_of(data))
        return self._content.blobs.put_bytes(data)

    def _purge_uploads(self) -> int:
        return self._content.staging.purge(
            self._upload_ttl.total_seconds(), self._now().timestamp()
        )

    def _pseudonym(self, device_id: str) -> str:
        """A name for the device that only this store can trace back."""
        return hmac.new(self._pseudonym_key, device_id.encode(), hashlib.sha256).hexdigest()[:32]


def _uploader(key: BatchKey) -> str:
    """Whose partial upload it is; ids have no slash."""
    return f"{key.pool_id}/{key.device_id}"


def _snapshot_id(pool_id: str, shards: Sequence[Shard]) -> str:
    content = "\n".join((pool_id, *(shard.digest.sha256 for shard in shards)))
    return hashlib.sha256(content.encode()).hexdigest()[:32]
