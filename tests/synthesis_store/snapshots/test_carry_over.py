"""Carried-over samples: exact numbers, uncut shards where possible, always the same choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from hfmds.domain.digest import digest_of
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import Shard
from synthesis_store.snapshots.carry_over import CarriedShard, carry_over

LABELS = [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 2, 2], [2, 2, 0, 1]]


def shards_of(labels: Sequence[Sequence[int]]) -> list[Shard]:
    return [
        Shard(digest_of(bytes([number])), len(one), "device", Counter(one), 1)
        for number, one in enumerate(labels)
    ]


def carried(policy: PoolPolicy, new_samples: int = 0, seed: int = 0) -> list[CarriedShard]:
    def labels_of(position: int) -> NDArray[np.int64]:
        return np.array(LABELS[position])

    return carry_over(policy, shards_of(LABELS), new_samples, labels_of, seed)


def test_replace_carries_nothing_over() -> None:
    assert carried(PoolPolicy()) == []


def test_accumulate_carries_all_over_in_order() -> None:
    assert carried(PoolPolicy(refresh="accumulate"), 10) == [CarriedShard(p, 4) for p in range(4)]


@pytest.mark.parametrize(
    ("new_samples", "expected"),
    [
        (0, [CarriedShard(1, 2, (2, 3)), CarriedShard(2, 4), CarriedShard(3, 4)]),
        (2, [CarriedShard(2, 4), CarriedShard(3, 4)]),
        (9, [CarriedShard(3, 1, (3,))]),
        (10, []),
        (11, []),
    ],
)
def test_at_the_cap_the_oldest_leave_first_and_one_shard_is_cut(
    new_samples: int, expected: list[CarriedShard]
) -> None:
    policy = PoolPolicy(refresh="accumulate", refresh_max_samples=10)
    assert carried(policy, new_samples) == expected


def labels_kept(kept: Sequence[CarriedShard]) -> Counter[int]:
    return Counter(
        LABELS[one.position][index]
        for one in kept
        for index in (range(one.samples) if one.indices is None else one.indices)
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.9])
def test_decay_keeps_the_fraction_of_each_class(fraction: float, seed: int) -> None:
    policy = PoolPolicy(refresh="decay", refresh_keep_fraction=fraction)
    kept = carried(policy, seed=seed)
    totals = Counter(label for one in LABELS for label in one)
    expected = {label: int(fraction * count) for label, count in totals.items()}
    assert labels_kept(kept) == Counter({k: v for k, v in expected.items() if v})
    assert [one.position for one in kept] == sorted({one.position for one in kept})
    assert all(one.samples == len(one.indices) for one in kept if one.indices is not None)
    assert carried(policy, seed=seed) == kept


def test_decay_keeps_shards_of_one_class_uncut_and_draws_them_by_seed() -> None:
    labels = [[number % 2] * 8 for number in range(16)]
    policy = PoolPolicy(refresh="decay", refresh_keep_fraction=0.5)

    def never(position: int) -> NDArray[np.int64]:
        pytest.fail("a shard was cut")

    drawn = [carry_over(policy, shards_of(labels), 0, never, seed) for seed in range(3)]
    for kept in drawn:
        assert Counter(one.position % 2 for one in kept) == {0: 4, 1: 4}
        assert all(one.indices is None for one in kept)
    assert len({tuple(one.position for one in kept) for kept in drawn}) == 3


def test_the_sample_limit_also_holds_after_decay() -> None:
    policy = PoolPolicy(refresh="decay", refresh_keep_fraction=0.9, refresh_max_samples=8)
    kept = carried(policy, new_samples=3)
    assert sum(one.samples for one in kept) == 5
    assert kept[-1].position == 3
