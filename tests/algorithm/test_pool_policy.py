from dataclasses import replace

import pytest

from hfmds.domain.methods import FedAvg
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.recipe import default_pool
from hfmds.errors import InvalidInput
from tests.wire.examples import METHODS, RECIPE


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pixel_type": "fp32"}, "pool.pixel_type is 'fp32'; it must be one of uint8, fp16"),
        ({"leakage_action": "hide"}, "pool.leakage_action is 'hide'"),
        ({"near_action": "merge"}, "pool.near_action is 'merge'"),
        ({"refresh": "never"}, "pool.refresh is 'never'"),
        ({"max_samples_per_class": -1}, "pool.max_samples_per_class is -1"),
        ({"max_pool_samples": -1}, "pool.max_pool_samples is -1"),
        ({"halt_minimum_samples": -1}, "pool.halt_minimum_samples is -1"),
        ({"near_max_samples": -1}, "pool.near_max_samples is -1"),
        ({"halt_ssim_paired_p99": 1.5}, "pool.halt_ssim_paired_p99 is 1.5"),
        ({"refresh_max_samples": -1}, "pool.refresh_max_samples is -1"),
        ({"psnr_paired_max_db": 100.5}, r"pool.psnr_paired_max_db is 100.5; .* in \[0, 100\]"),
        ({"halt_psnr_nearest_p99_db": -1.0}, "pool.halt_psnr_nearest_p99_db is -1.0"),
        ({"ssim_paired_max": -1.5}, r"pool.ssim_paired_max is -1.5; it must be in \[-1, 1\]"),
        ({"ssim_nearest_max": float("nan")}, "pool.ssim_nearest_max is nan"),
        ({"near_threshold": 1.5}, "pool.near_threshold is 1.5"),
        ({"refresh": "decay", "refresh_keep_fraction": 1.0}, "pool.refresh_keep_fraction is 1.0"),
        ({"leakage_action": "drop"}, "no sample can be above a limit; set one of pool.psnr_paired"),
        (
            {"near_action": "drop", "near_threshold": 0.0},
            "set pool.near_threshold",
        ),
        ({"refresh_max_samples": 5}, "but pool.refresh is replace; leave it out, or choose"),
        (
            {"refresh": "accumulate", "refresh_keep_fraction": 0.25},
            "but pool.refresh is accumulate; leave it out, or choose decay",
        ),
    ],
)
def test_what_cannot_be_or_would_do_nothing_is_refused(settings: dict[str, object], message: str):
    with pytest.raises(InvalidInput, match=message):
        PoolPolicy(**settings)  # type: ignore[arg-type]


def test_without_settings_nothing_is_limited():
    assert not PoolPolicy().limits_samples
    assert PoolPolicy(ssim_paired_max=0.5, leakage_action="refuse").limits_samples


def test_only_methods_that_share_images_have_a_pool_to_set():
    policy = PoolPolicy(max_samples_per_class=3)
    for name in ("hfmds", "fedmix", "fedgan"):
        assert replace(RECIPE, method=METHODS[name], pool=policy).pool == policy
    with pytest.raises(InvalidInput, match="fedavg has no pool"):
        replace(RECIPE, method=FedAvg(), pool=policy)


def test_the_default_threshold_of_near_duplicates_suits_the_images_of_the_method() -> None:
    # As measured: docs/results/store.md.
    expected = {"hfmds": 0.45, "fedmix": 0.35, "fedgan": 0.35}
    for name, threshold in expected.items():
        assert default_pool(METHODS[name]) == PoolPolicy(near_threshold=threshold)
    assert default_pool(FedAvg()) == PoolPolicy()
