from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hfmds.algorithm.sampling import (
    Candidate,
    choose,
    epoch_batches,
    initial_noise,
    sample_cohort,
)
from hfmds.algorithm.seeds import generator
from hfmds.domain.recipe import Sampling
from hfmds.errors import InvalidInput
from tests.algorithm.examples import RECIPE

NAMES = [f"device-{i}" for i in range(8)]
DEVICES = [Candidate(name, samples=10 * (i + 1)) for i, name in enumerate(NAMES)]
UNIFORM, BY_SAMPLES = Sampling(), Sampling("by_samples")
STRATEGIES = [UNIFORM, BY_SAMPLES, Sampling("power_of_choice", 5)]


@pytest.mark.parametrize("sampling", STRATEGIES, ids=lambda sampling: sampling.strategy)
def test_cohort_is_sorted_and_independent_of_the_order_devices_came_online(sampling: Sampling):
    cohort = sample_cohort(reversed(DEVICES), 3, sampling, run_seed=1, round_number=4)
    assert cohort == sample_cohort(DEVICES, 3, sampling, run_seed=1, round_number=4)
    assert len(cohort) == 3
    assert list(cohort) == sorted(set(cohort))


@pytest.mark.parametrize("sampling", STRATEGIES, ids=lambda sampling: sampling.strategy)
def test_cohort_changes_with_the_round_and_reaches_every_device(sampling: Sampling):
    cohorts = [sample_cohort(DEVICES, 3, sampling, run_seed=1, round_number=t) for t in range(40)]
    assert len(set(cohorts)) > 10
    if sampling.strategy != "power_of_choice":  # which takes the first, as none has trained yet
        assert {device for cohort in cohorts for device in cohort} == set(NAMES)


@pytest.mark.parametrize("sampling", STRATEGIES, ids=lambda sampling: sampling.strategy)
def test_cohort_is_everyone_when_size_is_zero_or_too_large(sampling: Sampling):
    assert sample_cohort(DEVICES, 0, sampling, 1, 1) == tuple(NAMES)
    assert sample_cohort(DEVICES, 99, sampling, 1, 1) == tuple(NAMES)
    assert sample_cohort([], 3, sampling, 1, 1) == ()


def test_another_purpose_is_another_draw():
    draws = {sample_cohort(DEVICES, 3, UNIFORM, 1, 1, purpose) for purpose in ("cohort", "spares")}
    assert len(draws) == 2


def test_a_uniform_cohort_is_the_draw_it_always_was():
    drawn = generator(1, "cohort", 4).choice(8, 3, replace=False)
    assert sample_cohort(DEVICES, 3, UNIFORM, 1, 4) == tuple(sorted(NAMES[i] for i in drawn))


def test_by_samples_a_device_is_drawn_in_proportion_to_what_it_holds():
    pair = [Candidate("large", 90), Candidate("small", 10)]
    first = [sample_cohort(pair, 1, BY_SAMPLES, 0, t) for t in range(1000)]
    assert 870 <= first.count(("large",)) <= 930  # three deviations of a binomial draw


def test_power_of_choice_takes_who_never_trained_and_then_the_highest_loss():
    devices = [
        Candidate("a", 1, last_loss=0.5),
        Candidate("b", 1, last_loss=2.0),
        Candidate("c", 1),
        Candidate("d", 1, last_loss=1.0),
        Candidate("e", 1, last_loss=float("nan")),
    ]
    everyone = Sampling("power_of_choice", 5)
    assert sample_cohort(devices, 1, everyone, 0, 1) == ("c",)
    assert sample_cohort(devices, 2, everyone, 0, 1) == ("c", "e")
    assert sample_cohort(devices, 3, everyone, 0, 1) == ("b", "c", "e")
    assert sample_cohort(devices, 4, everyone, 0, 1) == ("b", "c", "d", "e")


def test_power_of_choice_looks_at_its_candidates_only():
    devices = [Candidate(name, 1, last_loss=float(i)) for i, name in enumerate(NAMES)]
    chosen = {sample_cohort(devices, 1, Sampling("power_of_choice", 2), 0, t) for t in range(40)}
    assert len(chosen) > 2
    assert ("device-0",) not in chosen  # the lowest loss never wins against another


@pytest.mark.parametrize(
    ("sampling", "complaint"),
    [
        (lambda: Sampling("best"), "one of uniform, by_samples, power_of_choice"),
        (lambda: Sampling("power_of_choice"), "sampling.candidates is 0; it must be at least 1"),
        (lambda: Sampling("by_samples", 3), "leave it out, or choose power_of_choice"),
        (lambda: replace(RECIPE, sampling=BY_SAMPLES), "set cohort_size"),
        (
            lambda: replace(RECIPE, cohort_size=4, sampling=Sampling("power_of_choice", 3)),
            "sampling.candidates is 3; it must be at least 4",
        ),
    ],
)
def test_a_sampling_that_cannot_be_is_refused(sampling: Callable[[], object], complaint: str):
    with pytest.raises(InvalidInput, match=complaint):
        sampling()


def test_an_epoch_visits_every_sample_once_and_keeps_the_partial_batch():
    batches = list(epoch_batches(11, 4, generator(0)))
    assert [len(batch) for batch in batches] == [4, 4, 3]
    assert sorted(np.concatenate(batches)) == list(range(11))


def test_two_epochs_have_different_orders():
    random = generator(0)
    first, second = (np.concatenate(list(epoch_batches(50, 10, random))) for _ in range(2))
    assert not np.array_equal(first, second)


def test_choose_repeats_samples_only_when_there_are_too_few():
    assert sorted(choose(6, 6, generator(0))) == list(range(6))
    few = choose(3, 40, generator(0))
    assert len(few) == 40
    assert set(few) == {0, 1, 2}


def test_noise_is_standard_normal_float32():
    noise = initial_noise((40, 1, 16, 16), generator(0))
    assert noise.dtype == np.float32
    assert abs(noise.mean()) < 0.05
    assert abs(noise.std() - 1) < 0.05
