from __future__ import annotations

import numpy as np

from hfmds.algorithm.sampling import choose, epoch_batches, initial_noise, sample_cohort
from hfmds.algorithm.seeds import generator

DEVICES = [f"device-{i}" for i in range(8)]


def test_cohort_is_sorted_and_independent_of_the_order_devices_came_online():
    cohort = sample_cohort(reversed(DEVICES), 3, run_seed=1, round_number=4)
    assert cohort == sample_cohort(DEVICES, 3, run_seed=1, round_number=4)
    assert len(cohort) == 3
    assert list(cohort) == sorted(set(cohort))


def test_cohort_changes_with_the_round_and_reaches_every_device():
    cohorts = [sample_cohort(DEVICES, 3, run_seed=1, round_number=t) for t in range(40)]
    assert len(set(cohorts)) > 10
    assert {device for cohort in cohorts for device in cohort} == set(DEVICES)


def test_cohort_is_everyone_when_size_is_zero_or_too_large():
    assert sample_cohort(DEVICES, 0, 1, 1) == tuple(DEVICES)
    assert sample_cohort(DEVICES, 99, 1, 1) == tuple(DEVICES)
    assert sample_cohort([], 3, 1, 1) == ()


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
