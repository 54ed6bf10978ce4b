"""What a batch adds to its pool, and when the pool halts."""

from dataclasses import replace

import numpy as np
import pytest

from hfmds.domain.histograms import LeakageHistograms, histograms_of
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy
from synthesis_store.pools.leakage_gate import final_halt_reason, halt_reason, totals_of
from synthesis_store.snapshots.merging import Merging
from tests.synthesis_store.examples import make_batch


def leaky(name: str, *values: float) -> SyntheticBatch:
    """A batch in which one measurement is so."""
    batch = make_batch(0, len(values))
    return replace(batch, **{name: np.array(values, np.float32)})


def test_dropped_samples_are_counted_but_not_in_the_histograms() -> None:
    batch = leaky("psnr_paired", 19, 21, 20)
    report = PoolPolicy(psnr_paired_max_db=20)
    counted, dropped = (
        totals_of(batch, report),
        totals_of(batch, replace(report, leakage_action="drop")),
    )
    assert (counted.samples, counted.leaking_samples) == (3, 1)
    assert (dropped.samples, dropped.leaking_samples) == (2, 1)
    assert counted.leakage == histograms_of(batch)
    assert dropped.leakage == histograms_of(batch.take(np.array([0, 2])))


HALT = PoolPolicy(halt_psnr_paired_p99_db=20, halt_minimum_samples=4)


@pytest.mark.parametrize(
    ("values", "halted"),
    [
        ([20, 20, 20, 20], False),
        ([20.25, 20.25, 20.25, 20.25], True),
        ([19, 19, 19, 90], False),  # one of four does not make a percentile of the values below
        ([30, 30, 30], False),  # too few to tell
        ([], False),
    ],
)
def test_a_pool_is_halted_when_its_percentile_is_surely_above_the_limit(
    values: list[float], halted: bool
) -> None:
    leakage = histograms_of(leaky("psnr_paired", *values))
    reason = halt_reason(HALT, leakage)
    assert bool(reason) == halted
    if halted:
        assert "psnr_paired of its 4 samples is 20.00 dB or more, above 20 (halt_psnr_" in reason
    assert halt_reason(PoolPolicy(halt_minimum_samples=0), leakage) == ""


@pytest.mark.parametrize(
    ("name", "setting", "limit", "values", "told"),
    [
        ("psnr_paired", "halt_psnr_paired_p99_db", 20, (10, 20.125), "20.02 dB"),
        ("psnr_nearest", "halt_psnr_nearest_p99_db", 20, (10, 20.125), "20.02 dB"),
        ("ssim_paired", "halt_ssim_paired_p99", 0.5, (0.25, 0.515625), "0.513"),
        ("ssim_nearest", "halt_ssim_nearest_p99", 0.5, (0.25, 0.515625), "0.513"),
    ],
)
def test_a_sealed_pool_must_have_its_exact_percentile_within_the_limit(
    name: str, setting: str, limit: float, values: tuple[float, ...], told: str
) -> None:
    policy = PoolPolicy(**{setting: limit})
    batch = leaky(name, *values)
    merging = Merging(classes=10)
    merging.add(batch)
    found = merging.percentiles()
    assert f"{name} of its 2 samples is {told}" in final_halt_reason(policy, found)
    assert halt_reason(policy, histograms_of(batch)) == ""  # not sure while it is filled
    assert final_halt_reason(PoolPolicy(), found) == ""


def test_a_pool_is_halted_by_ssim_while_it_is_filled() -> None:
    policy = PoolPolicy(halt_ssim_nearest_p99=0.5, halt_minimum_samples=4)
    leakage = histograms_of(leaky("ssim_nearest", 0.75, 0.75, 0.75, 0.75))
    reason = halt_reason(policy, leakage)
    assert "ssim_nearest of its 4 samples is 0.7" in reason
    assert "above 0.5 (halt_ssim_nearest_p99)" in reason


def test_nothing_is_halted_while_filled_that_could_be_sealed() -> None:
    random = np.random.default_rng(0)
    for samples in (1, 2, 3, 50, 99, 100, 101, 500):
        values = random.uniform(15, 25, samples).astype(np.float32)
        exact = float(np.percentile(values.astype(np.float64), 99))
        leakage = histograms_of(leaky("psnr_nearest", *values.tolist()))
        at_it = PoolPolicy(halt_psnr_nearest_p99_db=exact, halt_minimum_samples=0)
        assert halt_reason(at_it, leakage) == ""
        # With many samples a percentile lies in a narrow range, and is found.
        below = replace(at_it, halt_psnr_nearest_p99_db=exact - 1)
        assert (halt_reason(below, leakage) != "") or samples < 99


def test_an_empty_pool_is_not_halted() -> None:
    assert halt_reason(replace(HALT, halt_minimum_samples=0), LeakageHistograms()) == ""
