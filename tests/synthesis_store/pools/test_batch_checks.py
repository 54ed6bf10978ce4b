"""The checks that a batch must pass."""

from dataclasses import replace
from typing import Any

import pytest

from hfmds.algorithm.leakage.leakage_limits import TooMuchLeakage
from hfmds.algorithm.pixels import levels, of_levels
from hfmds.domain.digest import digest_of
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import PoolSpec
from hfmds.domain.recipe import ModelSpec
from hfmds.errors import InvalidInput, LimitExceeded
from hfmds.wire.tensors import encode_batch
from synthesis_store.pools.batch_checks import (
    OtherWeights,
    max_batch_bytes,
    require_fit,
    require_weights,
)
from tests.synthesis_store.examples import MIXTURES, SPEC, make_batch, make_mixtures


@pytest.mark.parametrize("samples", [1, 100, 10_000])
def test_the_largest_batch_is_within_the_limit_and_one_twice_as_large_is_not(samples: int) -> None:
    spec = replace(SPEC, max_samples_per_device=samples)
    assert len(encode_batch(make_batch(0, samples))) <= max_batch_bytes(spec)
    if samples > 1000:  # below, the allowance for the header dominates
        assert len(encode_batch(make_batch(0, samples * 2))) > max_batch_bytes(spec)


@pytest.mark.parametrize("samples", [1, 10_000])
def test_the_limit_allows_for_the_shares_of_mixtures(samples: int) -> None:
    many = ModelSpec(channels=1, height=4, width=3, classes=1000)
    spec = replace(MIXTURES, model=many, max_samples_per_device=samples)
    data = encode_batch(make_mixtures(0, samples, many))
    assert len(data) <= max_batch_bytes(spec)
    if samples > 1000:
        assert len(data) > max_batch_bytes(replace(spec, with_shares=False))


def test_a_full_batch_fits() -> None:
    require_fit(make_batch(0, SPEC.max_samples_per_device), SPEC, "batch b")
    require_fit(make_mixtures(0, SPEC.max_samples_per_device), MIXTURES, "batch b")


def test_shares_of_other_classes_are_refused() -> None:
    other = replace(MIXTURES.model, classes=4)
    with pytest.raises(InvalidInput, match=r"4 classes, .* 5"):
        require_fit(make_mixtures(0, model=other), MIXTURES, "batch b")


def test_shares_must_be_there_in_a_pool_of_mixtures_and_only_there() -> None:
    with pytest.raises(InvalidInput, match="batch b: it has no class"):
        require_fit(make_batch(0), MIXTURES, "batch b")
    with pytest.raises(InvalidInput, match="batch b: it has class shares"):
        require_fit(make_mixtures(0), SPEC, "batch b")


def test_one_sample_too_many_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="batch b: it has 9 samples"):
        require_fit(make_batch(0, 9), SPEC, "batch b")


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no sample"):
        require_fit(make_batch(0, 0), SPEC, "batch b")


def test_images_of_another_shape_are_refused() -> None:
    other = ModelSpec(channels=1, height=3, width=4, classes=5)
    with pytest.raises(InvalidInput, match=r"\[1, 3, 4\].*\[1, 4, 3\]"):
        require_fit(make_batch(0, model=other), SPEC, "batch b")


@pytest.mark.parametrize("label", [-1, 5])
def test_a_label_outside_the_classes_is_refused(label: int) -> None:
    batch = make_batch(0)
    batch.images.labels[1] = label
    with pytest.raises(InvalidInput) as refusal:
        require_fit(batch, SPEC, "batch b")
    assert str(refusal.value) == (
        "batch b: 1 of 3 samples cannot be taken: "
        f"sample 1: label {label}, the model has classes 0 to 4"
    )


@pytest.mark.parametrize(
    ("name", "value", "bounds"),
    [
        ("psnr_paired", -0.5, "0 and 100"),
        ("psnr_nearest", 100.5, "0 and 100"),
        ("ssim_paired", -1.5, "-1 and 1"),
        ("ssim_nearest", 1e30, "-1 and 1"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused(name: str, value: float, bounds: str) -> None:
    batch = make_batch(0)
    batch.measurements[name][2] = value
    with pytest.raises(InvalidInput, match=f"sample 2: {name} is .*, it must be within {bounds}"):
        require_fit(batch, SPEC, "batch b")


def test_everything_that_is_wrong_is_said_sample_by_sample() -> None:
    batch = make_batch(0)
    batch.images.labels[0] = 7
    batch.psnr_paired[[0, 2]] = 101
    with pytest.raises(InvalidInput) as refusal:
        require_fit(batch, SPEC, "batch b")
    assert str(refusal.value) == (
        "batch b: 2 of 3 samples cannot be taken: "
        "sample 0: label 7, the model has classes 0 to 4 and "
        "psnr_paired is 101, it must be within 0 and 100; "
        "sample 2: psnr_paired is 101, it must be within 0 and 100"
    )


def test_a_refusal_names_the_first_ten_bad_samples() -> None:
    batch = make_batch(0, 5000)
    batch.images.labels[:] = 99
    with pytest.raises(InvalidInput) as refusal:
        require_fit(batch, replace(SPEC, max_samples_per_device=5000), "batch b")
    assert "sample 9: " in str(refusal.value)
    assert "sample 10: " not in str(refusal.value)
    assert str(refusal.value).endswith("; 4990 more are not listed")


def in_half_precision(batch: SyntheticBatch) -> SyntheticBatch:
    halves = of_levels(levels(batch.images.pixels), "fp16")
    return replace(batch, images=replace(batch.images, pixels=halves))


def test_a_pool_takes_pixels_of_one_type() -> None:
    bytes_, halves = make_batch(0), in_half_precision(make_batch(0))
    require_fit(halves, with_policy(pixel_type="fp16"), "batch b")
    with pytest.raises(InvalidInput, match="batch b: its pixels are float16"):
        require_fit(halves, SPEC, "batch b")
    with pytest.raises(InvalidInput, match="batch b: its pixels are uint8"):
        require_fit(bytes_, with_policy(pixel_type="fp16"), "batch b")


def test_the_limit_allows_for_half_precision() -> None:
    large = ModelSpec(channels=3, height=32, width=32, classes=5)
    spec = replace(with_policy(pixel_type="fp16"), model=large)
    data = encode_batch(in_half_precision(make_batch(0, spec.max_samples_per_device, large)))
    assert max_batch_bytes(replace(spec, policy=PoolPolicy())) < len(data)
    assert len(data) <= max_batch_bytes(spec)


def test_one_sample_of_a_class_too_many_is_refused() -> None:
    batch = make_batch(0)
    batch.images.labels[:] = [4, 1, 4]
    require_fit(batch, with_policy(max_samples_per_class=2), "batch b")
    with pytest.raises(LimitExceeded, match="batch b: it has 2 samples of class 4"):
        require_fit(batch, with_policy(max_samples_per_class=1), "batch b")


def test_a_pool_that_refuses_leakage_says_of_which_samples() -> None:
    batch = make_batch(0)
    batch.psnr_paired[:] = [20, 20.5, 10]
    batch.ssim_nearest[:] = [0.25, 0.5, 0.5]
    spec = with_policy(psnr_paired_max_db=20, ssim_nearest_max=0.25, leakage_action="refuse")
    with pytest.raises(TooMuchLeakage) as refusal:
        require_fit(batch, spec, "batch b")
    assert str(refusal.value) == (
        "batch b: 2 of 3 samples cannot be taken: "
        "sample 1: psnr_paired 20.5 is above 20 and ssim_nearest 0.5 is above 0.25; "
        "sample 2: ssim_nearest 0.5 is above 0.25"
    )


@pytest.mark.parametrize("action", ["report", "drop"])
def test_a_pool_that_reports_or_drops_takes_the_batch(action: str) -> None:
    require_fit(make_batch(0), with_policy(psnr_paired_max_db=1, leakage_action=action), "batch b")


def test_a_batch_of_another_model_is_refused() -> None:
    require_weights(None, SPEC, "batch b")
    require_weights(SPEC.weights, SPEC, "batch b")
    with pytest.raises(OtherWeights, match=r"batch b.*round 4"):
        require_weights(digest_of(b"w^3"), SPEC, "batch b")


def with_policy(**settings: Any) -> PoolSpec:
    return replace(SPEC, policy=PoolPolicy(**settings))
