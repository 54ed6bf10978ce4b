"""Pools: the coordinator opens them and devices fill them with batches.

This module knows neither protobuf nor gRPC. All methods but `put` block: an event loop calls them
through `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime

from hfmds.domain.digest import Digest
from hfmds.domain.pools import PoolSpec, PoolStatus
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
from hfmds.wire.chunks import Content, receive, upload_state
from synthesis_store.content.orphans import Orphans
from synthesis_store.content.stored_batches import read_stored_batch
from synthesis_store.monitoring.metrics import StoreMetrics
from synthesis_store.pools.batch_checks import require_fit, require_size, require_weights
from synthesis_store.pools.leakage_gate import totals_of
from synthesis_store.pools.open_uploads import OpenUploads, uploader
from synthesis_store.pools.pool_records import BatchKey, PoolRecords, require_open
from synthesis_store.pools.refused_batches import RefusedBatches

log = logging.getLogger(__name__)

MAX_CLASSES = 65_536  # the description of a snapshot has a number for each class


class Pools:
    """The pools of this store."""

    def __init__(
        self,
        records: PoolRecords,
        content: Content,
        orphans: Orphans,
        metrics: StoreMetrics,
        upload_ttl_seconds: float,
    ) -> None:
        """`upload_ttl_seconds` is how long a broken upload waits to be resumed."""
        self.refused_batches = RefusedBatches(records, metrics)
        self.open_uploads = OpenUploads()
        self._records = records
        self._content = content
        self._orphans = orphans
        self._metrics = metrics
        self._upload_ttl_seconds = upload_ttl_seconds

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
        has_batch = self._records.target(key).has_batch
        # The content may also be of another device or pool. Then the pool lacks the batch.
        state = upload_state(self._content, uploader(key), key.digest)
        return replace(state, complete=has_batch)

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
                target = await asyncio.to_thread(self._records.target, key)
                if target.has_batch:
                    return True
                require_open(key.pool_id, target)
                require_weights(weights, target.spec, f"batch {key.digest}")
                require_size(key.digest, target.spec)
                for abandoned in self.open_uploads.begin(key):
                    await asyncio.to_thread(self._discard, abandoned)
                await receive(self._content, uploader(key), key.digest, offset, chunks)
                return not await asyncio.to_thread(self._accept, key, target.spec)
            except HfmdsError as error:
                await asyncio.to_thread(self._refuse, key, error)
                raise

    def _accept(self, key: BatchKey, spec: PoolSpec) -> bool:
        """Check the stored content and make it the device's batch. Returns whether it is new."""
        batch = read_stored_batch(self._content.blobs, key.digest, to_check=True)
        require_fit(batch, spec, f"batch {key.digest}")
        totals = totals_of(batch, spec.policy)
        is_new = self._records.record_batch(key, totals)
        self.open_uploads.end(key)
        if is_new:
            self._metrics.count_batch(len(batch), totals.leaking_samples, totals.leakage)
            with log_context(run=spec.run_id, round=spec.round_number):
                extra = {"batch": str(key.digest), "samples": len(batch)}
                log.info("batch accepted", extra=extra)
        return is_new

    def _refuse(self, key: BatchKey, error: HfmdsError) -> None:
        if not isinstance(error, Unavailable):
            self.refused_batches.add(key.pool_id, error)
        if isinstance(error, InvalidInput | LimitExceeded | NotAllowed | TooLate):
            self._discard(key)

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
        return self._content.staging.purge(self._upload_ttl_seconds, now.timestamp())
