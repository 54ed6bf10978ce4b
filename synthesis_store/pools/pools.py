"""Pools: the coordinator opens them and devices fill them with batches.

This module knows neither protobuf nor gRPC. All methods but `put` block: an event loop calls them
through `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from hfmds.domain.digest import Digest
from hfmds.domain.pools import PoolSpec, PoolState, PoolStatus
from hfmds.domain.tasks import UploadState
from hfmds.errors import (
    HfmdsError,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    TooLate,
    Unavailable,
)
from hfmds.service.monitoring.logs import log_context
from hfmds.wire.chunks import Content, receive
from synthesis_store.content.orphans import Orphans
from synthesis_store.content.stored_batches import read_stored_batch
from synthesis_store.monitoring.metrics import StoreMetrics
from synthesis_store.pools.batch_checks import max_batch_bytes, require_fit, require_weights
from synthesis_store.pools.leakage_gate import count_batch
from synthesis_store.pools.open_uploads import OpenUploads, uploader
from synthesis_store.pools.pool_records import BatchKey, PoolRecords
from synthesis_store.pools.refused_batches import RefusedBatches
from synthesis_store.states import refusal_of_batches

log = logging.getLogger(__name__)

MAX_CLASSES = 65_536  # the description of a snapshot has a number for each class


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """Limits of uploads: their size, and how long a broken one waits to be resumed."""

    max_bytes: int
    ttl_seconds: float


class Pools:
    """The pools of this store."""

    def __init__(
        self,
        records: PoolRecords,
        content: Content,
        orphans: Orphans,
        metrics: StoreMetrics,
        limits: UploadLimits,
    ) -> None:
        self.refused_batches = RefusedBatches(records, metrics)
        self.open_uploads = OpenUploads()
        self._records = records
        self._content = content
        self._orphans = orphans
        self._metrics = metrics
        self._limits = limits

    def open(
        self,
        pool_id: str,
        spec: PoolSpec,
        referenced: Sequence[str] = (),
        cancelled: threading.Event | None = None,
    ) -> list[str]:
        """Open a pool and return the devices that it does not accept.

        Opening it again changes nothing. A call that is `cancelled` opens no pool.
        """
        if spec.model.classes > MAX_CLASSES:
            raise InvalidInput(
                f"pool {pool_id}: model.classes is {spec.model.classes}; "
                f"it must be at most {MAX_CLASSES}"
            )
        with log_context(run=spec.run_id, round=spec.round_number, pool=pool_id):
            if self._records.open(pool_id, spec, referenced, cancelled):
                log.info("pool opened")
        return self._records.withdrawn(spec.run_id)

    def status(self, pool_id: str) -> PoolStatus:
        """Describe a pool."""
        return self._records.status(pool_id)

    def query(self, key: BatchKey) -> UploadState:
        """Return how much of a batch the store has."""
        if self._records.target(key).has_batch:
            return UploadState(key.digest.size_bytes, complete=True)
        if self._content.blobs.contains(key.digest):  # from another device or pool
            return UploadState(key.digest.size_bytes, complete=False)
        offset = self._content.staging.offset(uploader(key), key.digest)
        return UploadState(offset, complete=False)

    async def put(
        self,
        key: BatchKey,
        offset: int,
        chunks: AsyncIterator[bytes],
        weights: Digest | None = None,
    ) -> bool:
        """Put a device's batch into its pool. Returns whether the pool had the batch before.

        `weights` names the model that the device used, if the device says so. When this method
        returns, the batch is durable. A refused batch leaves nothing behind. The device can resume
        an upload that broke.
        """
        with log_context(pool=key.pool_id, device=key.device_id):
            try:
                return await self._put(key, offset, chunks, weights)
            except HfmdsError as error:
                if not isinstance(error, Unavailable):
                    await asyncio.to_thread(self.refused_batches.add, key.pool_id, error)
                if isinstance(error, InvalidInput | LimitExceeded | NotAllowed | TooLate):
                    await asyncio.to_thread(self._discard, key)
                raise

    async def _put(
        self,
        key: BatchKey,
        offset: int,
        chunks: AsyncIterator[bytes],
        weights: Digest | None,
    ) -> bool:
        target = await asyncio.to_thread(self._records.target, key)
        if target.has_batch:
            return True
        if target.state is not PoolState.OPEN:
            raise refusal_of_batches(key.pool_id, target.state, target.state_reason)
        require_weights(weights, target.spec, f"batch {key.digest}")
        self._require_size(key, target.spec)
        await asyncio.to_thread(self._begin, key)
        await receive(self._content, uploader(key), key.digest, offset, chunks)
        return not await asyncio.to_thread(self._accept, key, target.spec)

    def _require_size(self, key: BatchKey, spec: PoolSpec) -> None:
        limit = min(self._limits.max_bytes, max_batch_bytes(spec))
        if key.digest.size_bytes > limit:
            raise LimitExceeded(
                f"batch {key.digest}: {key.digest.size_bytes} bytes are announced, "
                f"but pool {key.pool_id} accepts {limit} of a device"
            )

    def _begin(self, key: BatchKey) -> None:
        for abandoned in self.open_uploads.begin(key):
            self._discard(abandoned)

    def _accept(self, key: BatchKey, spec: PoolSpec) -> bool:
        """Check the stored content and make it the device's batch. Returns whether it is new."""
        batch = read_stored_batch(self._content.blobs, key.digest, to_check=True)
        require_fit(batch, spec, f"batch {key.digest}")
        counts = count_batch(batch, spec.policy)
        is_new = self._records.record_batch(key, counts)
        self.open_uploads.end(key)
        if is_new:
            self._metrics.count_batch(len(batch), counts.leaking_samples, counts.leakage)
            with log_context(run=spec.run_id, round=spec.round_number):
                extra = {"batch": str(key.digest), "samples": len(batch)}
                log.info("batch accepted", extra=extra)
        return is_new

    def _discard(self, key: BatchKey) -> None:
        self.open_uploads.end(key)
        self._content.staging.discard(uploader(key), key.digest)
        self._orphans.discard([key.digest])

    def discard_uploads(self, device_id: str) -> None:
        """Forget all open uploads of a device."""
        for key in self.open_uploads.of_device(device_id):
            self._discard(key)

    def purge_uploads(self, now: datetime) -> int:
        """Delete uploads that devices have not resumed for long. Returns their number."""
        return self._content.staging.purge(self._limits.ttl_seconds, now.timestamp())
