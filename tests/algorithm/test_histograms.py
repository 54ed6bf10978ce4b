import numpy as np
import pytest

from hfmds.domain.histograms import Histogram, LeakageHistograms, histograms_of
from hfmds.errors import InvalidInput
from tests.algorithm.examples import batch

EMPTY = Histogram(0.0, 0.5, (0,) * 4)


def of(*values: float) -> Histogram:
    return EMPTY.of(np.array(values, np.float32))


def test_a_range_takes_what_is_above_its_beginning_up_to_its_end():
    assert of(0.25, 0.5, 0.5625, 1.0, 2.0).counts == (2, 2, 0, 1)


def test_what_is_outside_counts_in_the_nearest_range():
    assert of(-7, 0, 2.25, 99).counts == (2, 0, 0, 2)


def test_histograms_are_added_up_and_taken_apart():
    both = of(0.25, 1.25) + of(0.25)
    assert both.counts == (2, 0, 1, 0)
    assert both - of(0.25) == of(0.25, 1.25)
    assert both.samples == 3


def test_histograms_with_other_ranges_are_not_added_up():
    for other in (
        Histogram(1.0, 0.5, (0,) * 4),
        Histogram(0.0, 1.0, (0,) * 4),
        Histogram(0, 0.5, ()),
    ):
        with pytest.raises(InvalidInput, match="different ranges"):
            EMPTY + other


@pytest.mark.parametrize(("lowest", "width"), [(0, 0), (0, -1), (np.nan, 1), (0, np.inf)])
def test_ranges_that_are_none_are_refused(lowest: float, width: float):
    with pytest.raises(InvalidInput, match="is not valid"):
        Histogram(lowest, width, (0,))


def test_a_percentile_lies_above_the_beginning_of_its_range():
    random = np.random.default_rng(0)
    empty = LeakageHistograms().psnr_paired
    for count in (1, 2, 7, 100, 1000):
        values = random.uniform(0, 100, count).astype(np.float32)
        for percentile in (0, 50, 99, 100):
            beginning = empty.of(values).beginning_of(percentile)
            below = np.percentile(values.astype(np.float64), percentile, method="lower")
            assert beginning < below <= beginning + empty.width


def test_a_batch_is_spread_by_each_of_its_measurements():
    found = histograms_of(batch([1, 2], [0, 1], psnr=[9.25, 9.75]))
    assert np.flatnonzero(found.psnr_paired.counts).tolist() == [18, 19]  # steps of 0.5 dB
    assert np.flatnonzero(found.psnr_nearest.counts).tolist() == [20, 21]
    assert np.flatnonzero(found.ssim_paired.counts).tolist() == [109]  # steps of 0.01 from -1
    assert np.flatnonzero(found.ssim_nearest.counts).tolist() == [118, 119]
    assert found.samples == 2
    assert found - found == LeakageHistograms()
    assert found + LeakageHistograms() == found
