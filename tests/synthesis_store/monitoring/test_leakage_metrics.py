"""The histograms of measured leakage."""

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from hfmds.domain.histograms import histograms_of
from synthesis_store.monitoring.leakage_metrics import LeakageMetrics
from tests.synthesis_store.examples import make_batch


def test_samples_are_counted_up_to_each_bound() -> None:
    registry, metrics = CollectorRegistry(), LeakageMetrics()
    registry.register(metrics)
    batch = make_batch(0, 4)
    batch.psnr_paired[:] = [4.75, 5, 5.25, 99]
    batch.ssim_nearest[:] = [-1, 0, 0.25, 1]
    metrics.count(histograms_of(batch))
    metrics.count(histograms_of(batch.take(np.array([0]))))

    def value(name: str, real: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"hfmds_store_sample_{name}", {"real": real, **labels})

    assert value("psnr_db_bucket", "paired", le="5") == 3
    assert value("psnr_db_bucket", "paired", le="10") == 4
    assert value("psnr_db_bucket", "paired", le="95") == 4
    assert value("psnr_db_bucket", "paired", le="100") == 5
    assert value("psnr_db_bucket", "paired", le="+Inf") == 5
    assert value("psnr_db_count", "nearest") == 5
    total = batch.psnr_paired.sum() + batch.psnr_paired[0]
    assert value("psnr_db_sum", "paired") == pytest.approx(total, abs=5 * 0.25)
    assert value("ssim_ratio_bucket", "nearest", le="-0.9") == 2
    assert value("ssim_ratio_bucket", "nearest", le="0") == 3
    assert value("ssim_ratio_bucket", "nearest", le="0.3") == 4
    assert value("ssim_ratio_bucket", "nearest", le="1") == 5
