from dataclasses import replace

import pytest

from hfmds.algorithm.recipes import ModelSpec
from hfmds.errors import InvalidInput, LimitExceeded
from hfmds.wire.tensors import encode_batch
from synthesis_store.admission import most_batch_bytes, require_fit
from tests.synthesis_store.examples import MIXTURES, SPEC, make_batch, make_mixtures


@pytest.mark.parametrize("samples", [1, 100, 10_000])
def test_the_largest_batch_is_within_the_limit_and_one_twice_as_large_is_not(samples: int) -> None:
    spec = replace(SPEC, max_samples_per_device=samples)
    assert len(encode_batch(make_batch(0, samples))) <= most_batch_bytes(spec)
    if samples > 1000:  # below, the allowance for the header dominates
        assert len(encode_batch(make_batch(0, samples * 2))) > most_batch_bytes(spec)


@pytest.mark.parametrize("samples", [1, 10_000])
def test_the_limit_allows_for_the_shares_of_mixtures(samples: int) -> None:
    many = ModelSpec(channels=1, height=4, width=3, classes=1000)
    spec = replace(MIXTURES, model=many, max_samples_per_device=samples)
    data = encode_batch(make_mixtures(0, samples, many))
    assert len(data) <= most_batch_bytes(spec)
    if samples > 1000:
        assert len(data) > most_batch_bytes(replace(spec, with_shares=False))


def test_a_full_batch_fits() -> None:
    require_fit(make_batch(0, SPEC.max_samples_per_device), SPEC, "batch b")
    require_fit(make_mixtures(0, SPEC.max_samples_per_device), MIXTURES, "batch b")


def test_shares_of_other_classes_are_refused() -> None:
    other = replace(MIXTURES.model, classes=4)
    with pytest.raises(InvalidInput, match=r"batch b: class shares are of 4 classes, .* has 5"):
        require_fit(make_mixtures(0, model=other), MIXTURES, "batch b")


def test_shares_must_be_there_in_a_pool_of_mixtures_and_only_there() -> None:
    with pytest.raises(InvalidInput, match=r"batch b: it has no class .* only .* with them"):
        require_fit(make_batch(0), MIXTURES, "batch b")
    with pytest.raises(InvalidInput, match="batch b: it has class shares, the pool takes none"):
        require_fit(make_mixtures(0), SPEC, "batch b")


def test_one_sample_too_many_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="batch b: it has 9 samples, the pool takes 8"):
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
    with pytest.raises(InvalidInput, match="classes 0 to 4"):
        require_fit(batch, SPEC, "batch b")
