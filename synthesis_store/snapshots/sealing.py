"""Sealing: turns an open pool into a snapshot, or halts it because it leaks too much."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from hfmds.domain.pools import Contribution
from hfmds.errors import HfmdsError, WrongState
from hfmds.service.monitoring.logs import log_context
from synthesis_store.content.stored_batches import ContentMissing
from synthesis_store.monitoring.metrics import StoreMetrics
from synthesis_store.pools.leakage_gate import final_halt_reason
from synthesis_store.pools.pool_records import PoolRecords
from synthesis_store.snapshots.missing_content import MissingContent
from synthesis_store.snapshots.snapshot_builder import SnapshotBuilder
from synthesis_store.snapshots.snapshot_records import (
    BuiltSnapshot,
    SealedPool,
    SealInput,
    SnapshotRecords,
)

log = logging.getLogger(__name__)


class Sealing:
    """Seals one pool at a time. Methods block."""

    def __init__(
        self,
        pools: PoolRecords,
        snapshots: SnapshotRecords,
        builder: SnapshotBuilder,
        missing: MissingContent,
        metrics: StoreMetrics,
    ) -> None:
        self._pools = pools
        self._snapshots = snapshots
        self._builder = builder
        self._missing = missing
        self._metrics = metrics
        self._turn = threading.Lock()

    def seal(self, pool_id: str, named: Iterable[Contribution]) -> SealedPool:
        """Seal the pool into a snapshot of those named batches that it has.

        A repeated call returns the same snapshot.
        """
        with self._turn:  # a repeated call waits for the first and then finds its snapshot
            return self._seal(pool_id, frozenset(named))

    def seal_due(self) -> None:
        """Seal the pools that have their quorum or are at their deadline; abandon empty ones."""
        for pool_id in self._pools.due():
            if self._pools.abandon_if_empty(pool_id):
                log.info("pool abandoned", extra={"pool": pool_id})
                continue
            try:
                self.seal(pool_id, self._snapshots.batches(pool_id))
            except HfmdsError as error:  # the next call tries again
                log.warning("pool %s is not sealed yet: %s", pool_id, error)
            except Exception:  # the other pools must not wait for this one
                log.exception("pool %s is not sealed yet", pool_id)

    def stop(self) -> None:
        """Seal no more, and return when the seal under way is over or given up."""
        self._builder.stop()
        with self._turn:  # a seal that waits for its turn notices the stop
            pass

    def _seal(self, pool_id: str, named: frozenset[Contribution]) -> SealedPool:
        earlier = self._snapshots.sealed(pool_id, named)
        if earlier is not None:
            return earlier
        seal_input = self._snapshots.seal_input(pool_id, named)
        spec = seal_input.spec
        with log_context(run=spec.run_id, round=spec.round_number, pool=pool_id):
            if not seal_input.present:
                raise WrongState(
                    f"pool {pool_id} cannot be sealed: "
                    f"none of the {len(named)} named batches is in it"
                )
            try:
                built = self._builder.build(seal_input, self._missing.lost(pool_id))
            except ContentMissing as error:
                if self._snapshots.seal_input(pool_id, named) != seal_input:
                    raise  # a withdrawal or a later batch has rightly deleted it
                if not self._missing.give_up(seal_input, error.digest):
                    raise
                return self._seal(pool_id, named)
            return self._record(built, named, seal_input)

    def _record(
        self, built: BuiltSnapshot, named: frozenset[Contribution], seal_input: SealInput
    ) -> SealedPool:
        try:
            self._require_harmless(built)
            sealed = self._snapshots.record(built, named, seal_input)
        except BaseException:
            self._builder.discard(built)
            raise
        self._missing.forget(seal_input.pool_id)
        if sealed.snapshot is built.snapshot:
            self._report(sealed)
        else:  # another replica was faster
            self._builder.discard(built)
        return sealed

    def _require_harmless(self, built: BuiltSnapshot) -> None:
        """Halt the pool if its snapshot would leak too much."""
        snapshot = built.snapshot
        reason = final_halt_reason(snapshot.spec.policy, built.percentiles)
        if reason:
            self._pools.halt(snapshot.pool_id, reason)
            raise WrongState(f"pool {snapshot.pool_id} is halted: {reason}")

    def _report(self, sealed: SealedPool) -> None:
        snapshot = sealed.snapshot
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
