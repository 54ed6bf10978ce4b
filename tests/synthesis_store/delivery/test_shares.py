"""A share is chosen by seed, within its limits, and evenly over the classes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.pools import Shard
from synthesis_store.delivery import shares as shares_of_snapshots
from synthesis_store.delivery.shares import ShareLimits


def a_shard(number: int, *histogram: int, size_bytes: int = 100) -> Shard:
    digest = Digest(digest_of(f"shard {number}".encode()).sha256, size_bytes)
    counts = {c: count for c, count in enumerate(histogram) if count}
    return Shard(digest, sum(histogram), "someone", counts)


def of_one_class(*classes: int, samples: int = 10) -> list[Shard]:
    """Shards of a single class each, of three."""
    return [
        a_shard(number, *(samples * (c == own) for c in range(3)))
        for number, own in enumerate(classes)
    ]


def choose(
    shards: Sequence[Shard], limits: ShareLimits, seed: int, *, balanced: bool
) -> tuple[Shard, ...]:
    places = shares_of_snapshots.choose(shards, limits, seed, balanced=balanced)
    return tuple(shards[place] for place in places)


def histogram(shards: tuple[Shard, ...]) -> list[int]:
    return [sum(shard.class_counts.get(c, 0) for shard in shards) for c in range(3)]


@pytest.mark.parametrize("balanced", [False, True])
def test_without_limits_the_share_is_the_whole_snapshot(balanced: bool) -> None:
    shards = of_one_class(0, 0, 1, 2)
    assert choose(shards, ShareLimits(), 7, balanced=balanced) == tuple(shards)
    assert choose(shards, ShareLimits(400, 40), 7, balanced=balanced) == tuple(shards)


@pytest.mark.parametrize("balanced", [False, True])
def test_limits_are_kept_and_used_up(balanced: bool) -> None:
    shards = of_one_class(*[0, 1, 2] * 10)
    for seed in range(5):
        assert len(choose(shards, ShareLimits(max_bytes=799), seed, balanced=balanced)) == 7
        assert len(choose(shards, ShareLimits(max_samples=120), seed, balanced=balanced)) == 12
        both = ShareLimits(max_bytes=800, max_samples=50)
        assert len(choose(shards, both, seed, balanced=balanced)) == 5


def test_a_shard_that_is_too_large_leaves_its_place_to_smaller_ones() -> None:
    large = a_shard(0, 90, 0, 0, size_bytes=900)
    small = [a_shard(number, 1, 1, 1, size_bytes=10) for number in range(1, 9)]
    for seed in range(5):
        assert choose([large, *small], ShareLimits(max_bytes=80), seed, balanced=True) == tuple(
            small
        )


def test_nothing_is_chosen_if_nothing_is_small_enough() -> None:
    assert choose(of_one_class(0, 1, 2), ShareLimits(max_bytes=99), 0, balanced=True) == ()
    assert choose(of_one_class(0, 1, 2), ShareLimits(max_samples=9), 0, balanced=False) == ()


def test_a_balanced_share_has_as_much_of_each_class() -> None:
    shards = of_one_class(*[0] * 50, *[1] * 5, *[2] * 5)
    limits = ShareLimits(max_samples=150)
    for seed in range(20):
        assert histogram(choose(shards, limits, seed, balanced=True)) == [50, 50, 50]
    plain = [histogram(choose(shards, limits, seed, balanced=False)) for seed in range(20)]
    assert np.mean(plain, axis=0)[0] > 100


def test_classes_that_have_no_more_leave_the_rest_to_the_others() -> None:
    shards = of_one_class(*[0] * 50, 1)
    assert histogram(choose(shards, ShareLimits(max_samples=100), 0, balanced=True)) == [90, 10, 0]


def test_a_draw_for_a_class_favours_shards_with_much_of_it() -> None:
    shards = [a_shard(number, 99, 1) for number in range(20)]
    shards += [a_shard(number, 0, 100) for number in range(20, 40)]
    for seed in range(20):
        zero, one, _ = histogram(choose(shards, ShareLimits(max_samples=1000), seed, balanced=True))
        assert abs(zero - one) <= 100


def test_the_order_of_the_manifest_is_kept() -> None:
    shards = of_one_class(*[0, 1, 2] * 10)
    chosen = choose(shards, ShareLimits(max_samples=150), 3, balanced=True)
    places = [shards.index(shard) for shard in chosen]
    assert all(a < b for a, b in pairwise(places))


@pytest.mark.parametrize("balanced", [False, True])
def test_seeds_differ_and_favour_nobody(balanced: bool) -> None:
    shards = of_one_class(*[0, 1, 2] * 10)
    times = np.zeros(len(shards), np.int64)
    for seed in range(300):
        for shard in choose(shards, ShareLimits(max_samples=60), seed, balanced=balanced):
            times[shards.index(shard)] += 1
    assert times.sum() == 300 * 6
    assert times.min() > 35  # 60 on average, with a deviation of 7
    assert times.max() < 85


def test_one_seed_favours_no_class_when_a_share_has_not_one_of_each() -> None:
    shards = of_one_class(0, 1, 2)
    first = [
        choose(shards, ShareLimits(max_samples=10), seed, balanced=True)[0] for seed in range(60)
    ]
    assert {shards.index(shard) for shard in first} == {0, 1, 2}


def test_the_choice_is_the_same_on_every_machine() -> None:
    shards = of_one_class(*[0, 1, 2] * 4)
    chosen = choose(shards, ShareLimits(max_samples=60), 11, balanced=True)
    assert [shards.index(shard) for shard in chosen] == [0, 2, 4, 9, 10, 11]


def test_carried_over_shards_are_mostly_chosen_again() -> None:
    before = of_one_class(*[0, 1, 2] * 10)
    after = before[6:] + [
        a_shard(100 + n, *(10 * (n % 3 == c) for c in range(3))) for n in range(6)
    ]
    limits = ShareLimits(max_samples=150)
    for seed in range(10):
        first = set(choose(before, limits, seed, balanced=True)) & set(after)
        again = set(choose(after, limits, seed, balanced=True))
        assert len(first & again) >= len(first) - 6
