"""The measured leakage of all accepted samples, as Prometheus histograms.

The store adds a batch from its histograms. Counting each sample by itself would take longer than
writing the batch to disk.
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
"""The number of bins that one bucket shows: 5 dB, or 0.1 of SSIM."""

_SHOWN = {
    "psnr": ("hfmds_store_sample_psnr_db", "PSNR in dB"),
    "ssim": ("hfmds_store_sample_ssim_ratio", "SSIM, from -1 to 1,"),
}
_HELP = (
    "Measured leakage of the samples accepted into pools: {} to the paired or the nearest real "
    "image. Higher means more leakage."
)


def statistics_of(histogram: Histogram) -> dict[str, float]:
    """Return mean, 99th percentile and maximum, the last two rounded up to the end of their bin."""
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
    """Histograms over all batches since the process began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._empty = LeakageHistograms()
        self._counts: dict[str, NDArray[np.int64]] = {
            name: np.zeros(len(getattr(self._empty, name).counts), np.int64)
            for name in LeakageHistograms.__dataclass_fields__
        }

    def count(self, leakage: LeakageHistograms) -> None:
        """Add the samples of a batch."""
        with self._lock:
            for name, counts in self._counts.items():
                counts += getattr(leakage, name).counts

    def collect(self) -> Iterator[HistogramMetricFamily]:
        for measurement, (metric, unit) in _SHOWN.items():
            family = HistogramMetricFamily(metric, _HELP.format(unit), labels=["real"])
            for real in ("paired", "nearest"):
                name = f"{measurement}_{real}"
                bins: Histogram = getattr(self._empty, name)
                with self._lock:
                    counts = self._counts[name].copy()
                cumulative = counts.cumsum()[_COARSE - 1 :: _COARSE].tolist()
                ends = [
                    f"{round(bins.lowest + bins.width * _COARSE * (position + 1), 6):g}"
                    for position in range(len(cumulative))
                ]
                middles = bins.lowest + bins.width * (np.arange(len(counts)) + 0.5)
                family.add_metric(
                    [real],
                    buckets=[*zip(ends, cumulative, strict=True), ("+Inf", cumulative[-1])],
                    sum_value=float(counts @ middles),  # exact to half a bin per sample
                )
            yield family
