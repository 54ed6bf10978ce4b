"""The inventory as Prometheus metrics, so that all replicas show the same.

A task of the event loop refreshes the inventory every few seconds, and scrapes show the last one.
So a scrape never waits for the database. If the database does not answer for some time, scrapes go
without the inventory and show what the process counts by itself.

The first hundred classes of a snapshot have a series each. The others have one together.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from hfmds.domain.pools import Snapshot
from synthesis_store.monitoring.inventory import MAX_RUNS, Inventory
from synthesis_store.monitoring.leakage_metrics import statistics_of

log = logging.getLogger(__name__)

_REFRESH_SECONDS = 2.0
_SHOWN_SECONDS = 15.0  # how long scrapes show an inventory that cannot be refreshed
_SHOWN_CLASSES = 100
_LIMITS = {  # settings of the run's policy, by the measurement that they limit
    ("psnr", "paired", "max"): "psnr_paired_max_db",
    ("psnr", "nearest", "max"): "psnr_nearest_max_db",
    ("psnr", "paired", "p99"): "halt_psnr_paired_p99_db",
    ("psnr", "nearest", "p99"): "halt_psnr_nearest_p99_db",
    ("ssim", "paired", "max"): "ssim_paired_max",
    ("ssim", "nearest", "max"): "ssim_nearest_max",
    ("ssim", "paired", "p99"): "halt_ssim_paired_p99",
    ("ssim", "nearest", "p99"): "halt_ssim_nearest_p99",
}
_OF_RUNS = f"of each run that is not released; only the {MAX_RUNS} runs that sealed last"


class InventoryMetrics(Collector):
    """Shows the inventory that was last read."""

    def __init__(
        self,
        read: Callable[[], Inventory],
        registry: CollectorRegistry,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` may block, and may raise while the database is away."""
        self._read = read
        self._monotonic = monotonic
        self._inventory: Inventory | None = None
        self._read_at = 0.0
        failures = Counter(
            "hfmds_store_scrape_failures_total",
            "Times that a part of the metrics was missing at a scrape, because the database was "
            "away or too slow.",
            ("part",),
            registry=registry,
        )
        self._failures = failures.labels("stock")
        registry.register(self)

    def refresh(self) -> None:
        """Read the inventory. Blocks."""
        try:
            self._inventory = self._read()
        except Exception as error:  # noqa: BLE001  # the next refresh tries again
            if self._inventory is not None:
                log.warning("the metrics of the inventory are missing: %s", error)
            self._inventory = None
            self._failures.inc()
        else:
            self._read_at = self._monotonic()

    async def keep_fresh(self) -> None:
        """Refresh every few seconds, until cancelled."""
        while True:
            await asyncio.to_thread(self.refresh)
            await asyncio.sleep(_REFRESH_SECONDS)

    def describe(self) -> Iterable[Metric]:
        return _families(Inventory())

    def collect(self) -> Iterable[Metric]:
        inventory = self._inventory
        is_fresh = self._monotonic() - self._read_at <= _SHOWN_SECONDS
        return _families(inventory) if inventory is not None and is_fresh else ()


def _families(inventory: Inventory) -> Iterator[Metric]:
    pools = GaugeMetricFamily(
        "hfmds_store_pools", "Pools by state. Each sealed pool is a snapshot.", labels=["state"]
    )
    for state, count in inventory.pools.items():
        pools.add_metric([state.value], count)
    yield pools
    yield CounterMetricFamily(
        "hfmds_store_halted_pools",
        "Pools that the store has ever halted, by the event log. A restart does not reset it.",
        value=inventory.halted_pools,
    )
    yield GaugeMetricFamily(
        "hfmds_store_content_bytes",
        "Size of all stored batches and shards, at most five minutes old.",
        value=inventory.content_bytes,
    )
    yield from _newest(inventory.newest)


def _newest(snapshots: Sequence[Snapshot]) -> Iterator[Metric]:
    def family(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
        name = f"hfmds_store_newest_snapshot_{name}"
        return GaugeMetricFamily(name, meaning, labels=["run", *labels])

    samples = family("samples", f"Samples in the newest snapshot {_OF_RUNS}.")
    measured = {
        "psnr": family(
            "psnr_db",
            "Measured leakage of a run's newest snapshot: PSNR to the paired or the nearest real "
            "image, as mean, p99 or max.",
            "real",
            "statistic",
        ),
        "ssim": family(
            "ssim_ratio",
            "Measured leakage of a run's newest snapshot: SSIM to the paired or the nearest real "
            "image, as mean, p99 or max. p99 and max are rounded up to 0.01.",
            "real",
            "statistic",
        ),
    }
    limits = {
        "psnr": family(
            "psnr_limit_db",
            "Limit of the newest snapshot's run for a sample (max), or for a pool, which halts "
            "above it (p99); 100 is no limit.",
            "real",
            "statistic",
        ),
        "ssim": family(
            "ssim_limit_ratio",
            "Limit of the newest snapshot's run for a sample (max), or for a pool, which halts "
            "above it (p99); 1 is no limit.",
            "real",
            "statistic",
        ),
    }
    classes = family(
        "class_samples",
        f"Samples in a run's newest snapshot by class. Classes after the first {_SHOWN_CLASSES} "
        "count together as other.",
        "class",
    )
    for snapshot in snapshots:
        run_id = snapshot.spec.run_id
        samples.add_metric([run_id], snapshot.samples)
        for measurement, real, statistic, value in _measured(snapshot):
            measured[measurement].add_metric([run_id, real, statistic], value)
        for (measurement, real, statistic), limit in _LIMITS.items():
            value = getattr(snapshot.spec.policy, limit)
            limits[measurement].add_metric([run_id, real, statistic], value)
        for number, count in _classes(snapshot.class_histogram):
            classes.add_metric([run_id, number], count)
    yield from (samples, *measured.values(), *limits.values(), classes)


def _measured(snapshot: Snapshot) -> Iterator[tuple[str, str, str, float]]:
    for name, decibels in dataclasses.asdict(snapshot.leakage).items():
        real, statistic = name.split("_")  # "paired_mean"
        yield "psnr", real, statistic, decibels
    for real in ("paired", "nearest"):
        statistics = statistics_of(getattr(snapshot.histograms, f"ssim_{real}"))
        for statistic, ratio in statistics.items():
            yield "ssim", real, statistic, ratio


def _classes(samples: Sequence[int]) -> Iterator[tuple[str, int]]:
    for number, count in enumerate(samples[:_SHOWN_CLASSES]):
        yield str(number), count
    if len(samples) > _SHOWN_CLASSES:
        yield "other", sum(samples[_SHOWN_CLASSES:])
