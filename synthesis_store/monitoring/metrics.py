"""The counters of the store. No label comes from a device, so the number of series is bounded."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter

from hfmds.domain.histograms import LeakageHistograms
from hfmds.domain.pools import Snapshot
from synthesis_store.monitoring.leakage_metrics import LeakageMetrics


class StoreMetrics:
    """The counters that grow with batches and snapshots.

    `rpc_metrics` counts calls, and `InventoryMetrics` shows what is stored.
    """

    def __init__(self, registry: CollectorRegistry, refusal_reasons: Iterable[str]) -> None:
        self.accepted_samples = Counter(
            "hfmds_store_accepted_samples_total",
            "Samples in the batches accepted into pools.",
            registry=registry,
        )
        self.leaking_samples = Counter(
            "hfmds_store_leaking_samples_total",
            "Samples in accepted batches that are over the pool's leakage limits.",
            registry=registry,
        )
        self._leakage = LeakageMetrics()
        registry.register(self._leakage)
        self.refused_batches = Counter(
            "hfmds_store_refused_batches_total",
            "PutBatch calls that the store refused, by reason.",
            ("reason",),
            registry=registry,
        )
        self.duplicate_samples = Counter(
            "hfmds_store_duplicate_samples_total",
            "Samples left out of snapshots because the snapshot has an equal one.",
            registry=registry,
        )
        self.near_duplicate_samples = Counter(
            "hfmds_store_near_duplicate_samples_total",
            "Samples that look like an earlier one: kept, or one of the two left out.",
            ("fate",),
            registry=registry,
        )
        # Series exist, with 0, before the first event.
        for reason in refusal_reasons:
            self.refused_batches.labels(reason)
        for fate in ("left out", "kept"):
            self.near_duplicate_samples.labels(fate)

    def count_batch(self, samples: int, leaking: int, leakage: LeakageHistograms) -> None:
        """Count an accepted batch, its leaking samples, and the leakage of the others."""
        self.accepted_samples.inc(samples)
        self.leaking_samples.inc(leaking)
        self._leakage.count(leakage)

    def count_duplicates(self, snapshot: Snapshot) -> None:
        """Count the duplicates and near duplicates of a new snapshot."""
        self.duplicate_samples.inc(snapshot.duplicates)
        dropped = snapshot.near_duplicates_dropped
        self.near_duplicate_samples.labels("left out").inc(dropped)
        self.near_duplicate_samples.labels("kept").inc(snapshot.near_duplicates - dropped)

    def count_refusal(self, reason: str) -> None:
        """Count a refused batch under one of the reasons."""
        self.refused_batches.labels(reason).inc()
