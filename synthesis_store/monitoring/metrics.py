"""What the synthesis store counts. No label comes from a device, so their number is bounded."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter

from hfmds.algorithm.leakage.leakage_limits import TooMuchLeakage
from hfmds.domain.pools import Snapshot
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
from hfmds.service.monitoring.scrape_parts import ScrapeParts
from synthesis_store.monitoring.inventory import Stock
from synthesis_store.monitoring.inventory_metrics import StockMetrics
from synthesis_store.monitoring.leakage_metrics import LeakageMetrics
from synthesis_store.pools.admission import OtherWeights
from synthesis_store.pools.leakage_gate import Measured

_REFUSAL_REASONS: dict[type[HfmdsError], str] = {
    InvalidInput: "malformed",
    TooMuchLeakage: "leakage",
    OtherWeights: "other_weights",
    CorruptData: "corrupt",
    LimitExceeded: "limit",
    TooLate: "sealed",
    NotAllowed: "not_allowed",
    NotFound: "unknown_pool",
    WrongState: "offset",
}
_OTHER_REASON = "other"


class StoreMetrics:
    """The store's own metrics; those of its calls are `hfmds.service.monitoring.rpc_metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.accepted_samples = Counter(
            "hfmds_store_accepted_samples_total",
            "Samples in the batches taken into pools.",
            registry=registry,
        )
        self.leaking_samples = Counter(
            "hfmds_store_leaking_samples_total",
            "Samples in the batches taken into pools that are over the pool's limits of leakage.",
            registry=registry,
        )
        self._leakage = LeakageMetrics()
        registry.register(self._leakage)
        self.refused_batches = Counter(
            "hfmds_store_refused_batches_total",
            "Calls to put a batch that were refused, by reason.",
            ("reason",),
            registry=registry,
        )
        self.duplicate_samples = Counter(
            "hfmds_store_duplicate_samples_total",
            "Samples left out of snapshots because an equal one was there.",
            registry=registry,
        )
        self.near_duplicate_samples = Counter(
            "hfmds_store_near_duplicate_samples_total",
            "Samples that looked like an earlier one: kept, or one of the two left out.",
            ("fate",),
            registry=registry,
        )
        # Shown as 0 before the first one.
        for reason in (*_REFUSAL_REASONS.values(), _OTHER_REASON):
            self.refused_batches.labels(reason)
        for fate in ("left out", "kept"):
            self.near_duplicate_samples.labels(fate)
        self._parts = ScrapeParts("store", registry)

    def watch(self, take_stock: Callable[[], Stock]) -> None:
        """Show what is here, looked up anew at every scrape."""
        self._parts.add("stock", StockMetrics(take_stock))

    def count_batch(self, samples: int, measured: Measured) -> None:
        """One batch of so many samples was taken."""
        self.accepted_samples.inc(samples)
        self.leaking_samples.inc(measured.leaking_samples)
        self._leakage.count(measured.leakage)

    def count_duplicates(self, snapshot: Snapshot) -> None:
        """How many samples of a new snapshot's pool were equal to another one, or nearly."""
        self.duplicate_samples.inc(snapshot.duplicates)
        dropped = snapshot.near_duplicates_dropped
        self.near_duplicate_samples.labels("left out").inc(dropped)
        self.near_duplicate_samples.labels("kept").inc(snapshot.near_duplicates - dropped)

    def count_refusal(self, error: HfmdsError) -> str:
        """One batch was not taken; the reason it is counted under."""
        reason = _REFUSAL_REASONS.get(type(error), _OTHER_REASON)
        self.refused_batches.labels(reason).inc()
        return reason
