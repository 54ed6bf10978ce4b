"""What the synthesis store counts. No label comes from a peer, so their number is bounded.

Of a snapshot's classes the first hundred have a series each, all others one together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from hfmds.algorithm.leakage_limits import TooMuchLeakage
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
from hfmds.wire.types import PoolState, Snapshot
from synthesis_store.admission import OtherWeights
from synthesis_store.leakage_metrics import LeakageMetrics, statistics_of
from synthesis_store.pool_records import Inventory
from synthesis_store.privacy_gate import Measured

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
_SHOWN_CLASSES = 100
_LIMITS = {  # of the run's policy, by what of a snapshot they hold
    ("psnr", "paired", "max"): "psnr_paired_max_db",
    ("psnr", "nearest", "max"): "psnr_nearest_max_db",
    ("psnr", "paired", "p99"): "halt_psnr_paired_p99_db",
    ("psnr", "nearest", "p99"): "halt_psnr_nearest_p99_db",
    ("ssim", "paired", "max"): "ssim_paired_max",
    ("ssim", "nearest", "max"): "ssim_nearest_max",
}


class StoreMetrics:
    """The store's own metrics; those of its calls are `hfmds.service.rpc_metrics`."""

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
        self.pools = Gauge(
            "hfmds_store_pools",
            "Pools by state; each sealed one is a snapshot.",
            ("state",),
            registry=registry,
        )
        self.content_bytes = Gauge(
            "hfmds_store_content_bytes",
            "Size of all batches and shards kept, when a pool was last opened or sealed.",
            registry=registry,
        )
        self.newest_samples = Gauge(
            "hfmds_store_newest_snapshot_samples",
            "Samples in the newest snapshot.",
            registry=registry,
        )
        self.newest_psnr = Gauge(
            "hfmds_store_newest_snapshot_psnr_db",
            "Measured leakage of the newest snapshot: PSNR to the paired or the nearest real "
            "image, as mean, p99 or max.",
            ("real", "statistic"),
            registry=registry,
        )
        self.newest_ssim = Gauge(
            "hfmds_store_newest_snapshot_ssim_ratio",
            "Measured leakage of the newest snapshot: SSIM to the paired or the nearest real "
            "image, as mean, p99 or max, of which the last two are rounded up to 0.01.",
            ("real", "statistic"),
            registry=registry,
        )
        self._limits = {
            "psnr": Gauge(
                "hfmds_store_newest_snapshot_psnr_limit_db",
                "What the newest snapshot's run allows: of a sample (max), or of a pool, which is "
                "halted above it (p99); 100 is no limit.",
                ("real", "statistic"),
                registry=registry,
            ),
            "ssim": Gauge(
                "hfmds_store_newest_snapshot_ssim_limit_ratio",
                "What the newest snapshot's run allows of a sample; 1 is no limit.",
                ("real", "statistic"),
                registry=registry,
            ),
        }
        self.newest_class_samples = Gauge(
            "hfmds_store_newest_snapshot_class_samples",
            f"Samples in the newest snapshot by class; those after the first {_SHOWN_CLASSES} are "
            "counted together as other.",
            ("class",),
            registry=registry,
        )
        # Shown as 0 before the first one.
        for reason in (*_REFUSAL_REASONS.values(), _OTHER_REASON):
            self.refused_batches.labels(reason)
        for fate in ("left out", "kept"):
            self.near_duplicate_samples.labels(fate)
        for state in PoolState:
            self.pools.labels(state.value)

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

    def show_inventory(self, inventory: Inventory) -> None:
        """The state of the whole store."""
        for state, count in inventory.pools.items():
            self.pools.labels(state.value).set(count)
        self.content_bytes.set(inventory.content_bytes)

    def show_newest(self, snapshot: Snapshot) -> None:
        """The newest snapshot's size and leakage."""
        self.newest_samples.set(snapshot.samples)
        for name, decibels in dataclasses.asdict(snapshot.leakage).items():
            real, statistic = name.split("_")  # "paired_mean"
            self.newest_psnr.labels(real, statistic).set(decibels)
        for real in ("paired", "nearest"):
            found = statistics_of(getattr(snapshot.histograms, f"ssim_{real}"))
            for statistic, ratio in found.items():
                self.newest_ssim.labels(real, statistic).set(ratio)
        for (measurement, real, statistic), limit in _LIMITS.items():
            gauge = self._limits[measurement].labels(real, statistic)
            gauge.set(getattr(snapshot.spec.policy, limit))
        self._show_classes(snapshot.class_histogram)

    def _show_classes(self, samples: Sequence[int]) -> None:
        self.newest_class_samples.clear()  # the snapshot before may have had more classes
        for number, count in enumerate(samples[:_SHOWN_CLASSES]):
            self.newest_class_samples.labels(str(number)).set(count)
        if len(samples) > _SHOWN_CLASSES:
            self.newest_class_samples.labels("other").set(sum(samples[_SHOWN_CLASSES:]))
