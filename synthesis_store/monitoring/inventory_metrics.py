"""What the store has, as Prometheus metrics: read at every scrape, so that replicas agree.

Of a snapshot's classes the first hundred have a series each, all others one together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from hfmds.domain.pools import Snapshot
from synthesis_store.monitoring.inventory import MOST_RUNS, Stock
from synthesis_store.monitoring.leakage_metrics import statistics_of

_SHOWN_CLASSES = 100
_LIMITS = {  # of the run's policy, by what of a snapshot they hold
    ("psnr", "paired", "max"): "psnr_paired_max_db",
    ("psnr", "nearest", "max"): "psnr_nearest_max_db",
    ("psnr", "paired", "p99"): "halt_psnr_paired_p99_db",
    ("psnr", "nearest", "p99"): "halt_psnr_nearest_p99_db",
    ("ssim", "paired", "max"): "ssim_paired_max",
    ("ssim", "nearest", "max"): "ssim_nearest_max",
    ("ssim", "paired", "p99"): "halt_ssim_paired_p99",
    ("ssim", "nearest", "p99"): "halt_ssim_nearest_p99",
}
_OF_RUNS = f"of each run that is not released, the {MOST_RUNS} that sealed last"


class StockMetrics(Collector):
    """Takes stock at every scrape."""

    def __init__(self, take_stock: Callable[[], Stock]) -> None:
        self._take_stock = take_stock

    def describe(self) -> Iterable[Metric]:
        return _families(Stock())

    def collect(self) -> Iterable[Metric]:
        return _families(self._take_stock())


def _families(stock: Stock) -> Iterator[Metric]:
    pools = GaugeMetricFamily(
        "hfmds_store_pools", "Pools by state; each sealed one is a snapshot.", labels=["state"]
    )
    for state, count in stock.pools.items():
        pools.add_metric([state.value], count)
    yield pools
    yield CounterMetricFamily(
        "hfmds_store_halted_pools",
        "Pools that were ever halted, by the event log: it does not begin anew with a process.",
        value=stock.halted_pools,
    )
    yield GaugeMetricFamily(
        "hfmds_store_content_bytes",
        "Size of all batches and shards kept, at most five minutes ago.",
        value=stock.content_bytes,
    )
    yield from _newest(stock.newest)


def _newest(snapshots: Sequence[Snapshot]) -> Iterator[Metric]:
    def family(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
        name = f"hfmds_store_newest_snapshot_{name}"
        return GaugeMetricFamily(name, meaning, labels=["run", *labels])

    samples = family("samples", f"Samples in the newest snapshot {_OF_RUNS}.")
    measured = {
        "psnr": family(
            "psnr_db",
            "Measured leakage of the newest snapshot of a run: PSNR to the paired or the nearest "
            "real image, as mean, p99 or max.",
            "real",
            "statistic",
        ),
        "ssim": family(
            "ssim_ratio",
            "Measured leakage of the newest snapshot of a run: SSIM to the paired or the nearest "
            "real image, as mean, p99 or max, of which the last two are rounded up to 0.01.",
            "real",
            "statistic",
        ),
    }
    limits = {
        "psnr": family(
            "psnr_limit_db",
            "What the newest snapshot's run allows: of a sample (max), or of a pool, which is "
            "halted above it (p99); 100 is no limit.",
            "real",
            "statistic",
        ),
        "ssim": family(
            "ssim_limit_ratio",
            "What the newest snapshot's run allows: of a sample (max), or of a pool, which is "
            "halted above it (p99); 1 is no limit.",
            "real",
            "statistic",
        ),
    }
    classes = family(
        "class_samples",
        f"Samples in the newest snapshot of a run by class; those after the first {_SHOWN_CLASSES} "
        "are counted together as other.",
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
        found = statistics_of(getattr(snapshot.histograms, f"ssim_{real}"))
        for statistic, ratio in found.items():
            yield "ssim", real, statistic, ratio


def _classes(samples: Sequence[int]) -> Iterator[tuple[str, int]]:
    for number, count in enumerate(samples[:_SHOWN_CLASSES]):
        yield str(number), count
    if len(samples) > _SHOWN_CLASSES:
        yield "other", sum(samples[_SHOWN_CLASSES:])
