from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hfmds.algorithm.leakage.leakage_filter import releasable
from hfmds.algorithm.leakage.leakage_limits import TooMuchLeakage, accepted, leaking
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy
from tests.algorithm.examples import batch

LIMITS = {
    "psnr_paired": "psnr_paired_max_db",
    "psnr_nearest": "psnr_nearest_max_db",
    "ssim_paired": "ssim_paired_max",
    "ssim_nearest": "ssim_nearest_max",
}


def leaky(name: str, *values: float) -> SyntheticBatch:
    """A batch in which one measurement is so."""
    ordinary = batch(list(range(len(values))), [0] * len(values))
    return replace(ordinary, **{name: np.array(values, np.float32)})


def kept_pixels(made: SyntheticBatch) -> list[int]:
    return made.images.pixels.ravel().tolist()


@pytest.mark.parametrize("name", LIMITS)
def test_a_sample_above_its_limit_leaks_and_one_at_it_does_not(name: str):
    made = leaky(name, 0.5, 0.75, 0.875)
    policy = PoolPolicy(**{LIMITS[name]: 0.75}, leakage_action="refuse")  # type: ignore[arg-type]
    assert leaking(made, policy).tolist() == [False, False, True]
    assert not leaking(made, PoolPolicy()).any()
    with pytest.raises(TooMuchLeakage) as refusal:
        releasable(made, policy)
    assert str(refusal.value) == (
        "the synthetic images: 1 of 3 samples cannot be taken: "
        f"sample 2: {name} 0.875 is above 0.75"
    )


def test_only_a_policy_that_drops_takes_samples_away():
    made = leaky("psnr_paired", 19, 21, 20)
    report = PoolPolicy(psnr_paired_max_db=20)
    drop = replace(report, leakage_action="drop")
    assert accepted(made, report) is made
    assert releasable(made, report) is made
    assert accepted(made, replace(drop, psnr_paired_max_db=21)) is made
    assert kept_pixels(accepted(made, drop)) == kept_pixels(releasable(made, drop)) == [0, 2]
    assert accepted(made, drop).psnr_paired.tolist() == [19, 20]
    assert len(accepted(made, replace(drop, psnr_paired_max_db=1))) == 0


def test_a_device_whose_images_all_leak_says_so_and_releases_none():
    policy = PoolPolicy(psnr_paired_max_db=1, leakage_action="drop")
    with pytest.raises(TooMuchLeakage, match="2 of 2 samples cannot be taken: sample 0: psnr_pai"):
        releasable(leaky("psnr_paired", 19, 21), policy)


def test_of_a_class_no_more_than_the_pool_takes_are_released():
    made = batch([10, 11, 12, 13, 14], [1, 0, 1, 1, 0])
    assert kept_pixels(releasable(made, PoolPolicy(max_samples_per_class=2))) == [10, 11, 12, 14]
    assert kept_pixels(releasable(made, PoolPolicy(max_samples_per_class=1))) == [10, 11]
    assert releasable(made, PoolPolicy(max_samples_per_class=3)) is made
