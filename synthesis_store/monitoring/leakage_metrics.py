"""Measured leakage of all samples that were taken, as Prometheus histograms.

A batch is counted at once from its histogram of fine ranges: one sample at a time would take longer
than writing the batch to disk.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from hfmds.domain.histograms import Histogram, LeakageHistograms

_COARSE = 10
"""How many of the fine ranges make one of those that are shown: 5 dB, or 0.1 of SSIM."""

_SHOWN = {
    "psnr": ("hfmds_store_sample_psnr_db", "PSNR in dB"),
    "ssim": ("hfmds_store_sample_ssim_ratio", "SSIM, from -1 to 1,"),
}
_HELP = (
    "Measured leakage of the samples taken into pools: {} to the paired or the nearest real image; "
    "higher means more leaked."
)


def statistics_of(histogram: Histogram) -> dict[str, float]:
    """Mean, 99th percentile and maximum, the last two rounded up to the end of their range."""
    counts = np.asarray(histogram.counts)
    if not counts.any():
        return {}
    middles = histogram.lowest + histogram.width * (np.arange(len(counts)) + 0.5)
    return {
        "mean": float(counts @ middles / counts.sum()),
        "p99": histogram.beginning_of(99) + histogram.width,
        "max": histogram.lowest + histogram.width * float(np.flatnonzero(counts)[-1] + 1),
    }


class LeakageMetrics(Collector):
    """Adds up since the process began, as counters do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._empty = LeakageHistograms()
        self._counts: dict[str, NDArray[np.int64]] = {
            name: np.zeros(len(getattr(self._empty, name).counts), np.int64)
            for name in LeakageHistograms.__dataclass_fields__
        }

    def count(self, leakage: LeakageHistograms) -> None:
        """Count the samples of a batch."""
        with self._lock:
            for name, counts in self._counts.items():
                counts += getattr(leakage, name).counts

    def collect(self) -> Iterator[HistogramMetricFamily]:
        for measurement, (metric, what) in _SHOWN.items():
            family = HistogramMetricFamily(metric, _HELP.format(what), labels=["real"])
            for real in ("paired", "nearest"):
                name = f"{measurement}_{real}"
                ranges: Histogram = getattr(self._empty, name)
                with self._lock:
                    counts = self._counts[name].copy()
                up_to = counts.cumsum()[_COARSE - 1 :: _COARSE].tolist()
                ends = [
                    f"{round(ranges.lowest + ranges.width * _COARSE * (position + 1), 6):g}"
                    for position in range(len(up_to))
                ]
                middles = ranges.lowest + ranges.width * (np.arange(len(counts)) + 0.5)
                family.add_metric(
                    [real],
                    buckets=[*zip(ends, up_to, strict=True), ("+Inf", up_to[-1])],
                    sum_value=float(counts @ middles),  # right to half a fine range per sample
                )
            yield family
