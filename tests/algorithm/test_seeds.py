from __future__ import annotations

from hfmds.algorithm.seeds import derive_seed, generator, task_seed


def test_derived_seeds_never_change():
    # A run that is resumed by a newer release must draw the same numbers: this value is forever.
    assert derive_seed(0, "train", 1, "device-00") == 6041598883532329474


def test_names_are_kept_apart():
    seeds = {
        derive_seed(1, "ab", "c"),
        derive_seed(1, "a", "bc"),
        derive_seed(1, "abc"),
        derive_seed(1, 2),
        derive_seed(1, "2"),
        derive_seed(12),
        derive_seed(2, 1),
    }
    assert len(seeds) == 7


def test_seeds_fit_a_signed_64_bit_field():
    seeds = [derive_seed(2**63 - 1, i) for i in range(200)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_generators_repeat_by_name():
    assert generator(3, "noise").integers(1 << 40) == generator(3, "noise").integers(1 << 40)
    assert generator(3, "noise").integers(1 << 40) != generator(3, "subset").integers(1 << 40)


def test_task_seed_depends_on_everything_that_names_a_task():
    seeds = {
        task_seed(0, "train", 1, "a"),
        task_seed(1, "train", 1, "a"),
        task_seed(0, "synthesise", 1, "a"),
        task_seed(0, "train", 2, "a"),
        task_seed(0, "train", 1, "b"),
    }
    assert len(seeds) == 5
