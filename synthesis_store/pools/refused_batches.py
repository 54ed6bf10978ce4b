"""Refused batches: counted as metrics at once, and in the event log every few seconds."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from hfmds.algorithm.leakage.leakage_limits import TooMuchLeakage
from hfmds.errors import (
    CorruptData,
    HfmdsError,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotFound,
    TooLate,
    WrongState,
)
from synthesis_store.monitoring.metrics import StoreMetrics
from synthesis_store.pools.batch_checks import OtherWeights
from synthesis_store.pools.pool_records import PoolFull, PoolRecords

log = logging.getLogger(__name__)

_REASONS: dict[type[HfmdsError], str] = {
    InvalidInput: "malformed",
    TooMuchLeakage: "leakage",
    OtherWeights: "other_weights",
    CorruptData: "corrupt",
    LimitExceeded: "limit",
    PoolFull: "pool_full",
    TooLate: "sealed",
    NotAllowed: "not_allowed",
    NotFound: "unknown_pool",
    WrongState: "offset",
    HfmdsError: "other",
}
"""Why the store refuses batches. An error counts under the nearest of its classes."""
REFUSAL_REASONS = tuple(_REASONS.values())


def reason_of(error: HfmdsError) -> str:
    """Return the reason under which an error counts."""
    return next(_REASONS[kind] for kind in type(error).__mro__ if kind in _REASONS)


class RefusedBatches:
    """Counts refused batches by pool and reason. Thread-safe."""

    def __init__(self, records: PoolRecords, metrics: StoreMetrics) -> None:
        self._records = records
        self._metrics = metrics
        self._lock = threading.Lock()
        self._unwritten: dict[str, Counter[str]] = {}  # by pool

    def add(self, pool_id: str, error: HfmdsError) -> None:
        """Count one refused batch."""
        reason = reason_of(error)
        self._metrics.count_refusal(reason)
        log.info("batch refused", extra={"reason": str(error)})
        if isinstance(error, TooMuchLeakage):
            self._records.count_leaking_batch(pool_id)
        if not isinstance(error, NotFound):  # a caller can make up any number of unknown pools
            with self._lock:
                self._unwritten.setdefault(pool_id, Counter())[reason] += 1

    def write(self) -> None:
        """Write the counts since the last call to the event log."""
        with self._lock:
            counts, self._unwritten = self._unwritten, {}
        try:
            if counts:
                self._records.write_refusals(counts)
        except BaseException:
            with self._lock:  # the next call writes them
                for pool_id, reasons in counts.items():
                    self._unwritten.setdefault(pool_id, Counter()).update(reasons)
            raise
