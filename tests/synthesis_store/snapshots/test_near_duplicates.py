"""Finding near duplicates, and which of them a snapshot keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import PoolSpec
from hfmds.domain.recipe import ModelSpec
from synthesis_store.snapshots.merging import sample_hashes, split_hashes
from synthesis_store.snapshots.near_duplicates import NearDuplicates
from synthesis_store.snapshots.similarity import max_squared_distance, vectors_of
from tests.synthesis_store.examples import SPEC, Store, content_of, refresh, same
from tests.synthesis_store.pictures import batch_of, blotches, noisy

A, B = blotches(1), blotches(2)
LIKE_A, LIKE_B = noisy(A), noisy(B)

COUNT = PoolPolicy(near_threshold=0.35)
DROP = replace(COUNT, near_action="drop")
KEEP_BETTER = replace(COUNT, near_action="keep_better")
PICTURES = replace(SPEC, model=ModelSpec(channels=3, height=32, width=32, classes=5))


def pool(policy: PoolPolicy) -> PoolSpec:
    return replace(PICTURES, policy=policy)


def names(batch: SyntheticBatch) -> list[bytes]:
    return split_hashes(sample_hashes(batch))


def look(policy: PoolPolicy, *batches: SyntheticBatch) -> NearDuplicates:
    near = NearDuplicates(policy)
    for batch in batches:
        near.add(batch, names(batch))
    return near


def positions_left_out(policy: PoolPolicy, batch: SyntheticBatch) -> list[int]:
    left_out = look(policy, batch).left_out
    return [at for at, name in enumerate(names(batch)) if name in left_out]


# --- what is found ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [COUNT, DROP, KEEP_BETTER])
def test_every_policy_finds_the_same_near_duplicates(
    policy: PoolPolicy,
) -> None:
    assert look(policy, batch_of([A, B, LIKE_A]), batch_of([LIKE_B, blotches(3)])).count == 2


def test_a_picture_of_another_class_is_another_sample() -> None:
    assert look(DROP, batch_of([A, LIKE_A], labels=[0, 1])).left_out == set()


def test_one_of_the_same_class_is_found_behind_those_of_others() -> None:
    alike = [noisy(A, seed) for seed in range(5)]
    assert positions_left_out(DROP, batch_of([*alike, A], labels=[0, 1, 2, 3, 4, 4])) == [5]


def test_exact_copies_are_no_near_duplicates() -> None:
    batch = batch_of([A, LIKE_A])
    assert look(DROP, batch, batch, batch_of([A])).count == 1


def test_groups_do_not_grow_in_small_steps() -> None:
    """Each is like the one before it, and the last is like the first no more."""
    steps = [np.rint(A + share * (B.astype(float) - A)) for share in np.linspace(0, 1, 9)]
    batch = batch_of([step.astype(np.uint8) for step in steps])
    vectors = vectors_of(batch.images).astype(np.int64)
    in_a_row = ((vectors[1:] - vectors[:-1]) ** 2).sum(axis=1)
    assert in_a_row.max() < max_squared_distance(0.35)
    left_out = positions_left_out(DROP, batch)
    assert 0 < len(left_out) < 7
    kept = np.delete(vectors, left_out, axis=0)
    assert ((kept[1:] - kept[:-1]) ** 2).sum(axis=1).min() > max_squared_distance(0.35)


def expected_left_out(vectors: NDArray[np.int64], threshold: float) -> list[int]:
    """By comparing each with all leaders."""
    leaders: list[int] = []
    left_out = []
    for number, vector in enumerate(vectors):
        squares = ((vectors[leaders] - vector) ** 2).sum(axis=1)
        if leaders and squares.min() <= max_squared_distance(threshold):
            left_out.append(number)
        else:
            leaders.append(number)
    return left_out


def test_among_hundreds_it_finds_what_an_exact_search_finds() -> None:
    random = np.random.default_rng(0)
    first = [blotches(seed) for seed in range(200)]
    alike = [noisy(first[one], seed) for seed, one in enumerate(random.integers(0, 200, 100))]
    batch = batch_of([(first + alike)[one] for one in random.permutation(300)])
    vectors = vectors_of(batch.images).astype(np.int64)
    left_out = positions_left_out(DROP, batch)
    assert left_out == expected_left_out(vectors, DROP.near_threshold)
    assert len(left_out) == 100


# --- which one stays ----------------------------------------------------------------------------


def test_counting_leaves_nothing_out() -> None:
    assert look(COUNT, batch_of([A, LIKE_A])).left_out == set()


def test_dropping_keeps_the_first() -> None:
    assert positions_left_out(DROP, batch_of([A, LIKE_A], leakage=[20, 10])) == [1]


@pytest.mark.parametrize(
    ("leakage", "left_out"),
    [([20, 10, 15], [0, 2]), ([10, 10, 10], [1, 2]), ([20, 15, 10], [0, 1]), ([9, 15, 10], [1, 2])],
)
def test_the_better_one_gave_less_away_or_else_came_first(
    leakage: Sequence[float], left_out: list[int]
) -> None:
    batch = batch_of([A, LIKE_A, noisy(A, 1)], leakage)
    assert positions_left_out(KEEP_BETTER, batch) == left_out


# --- in a snapshot ------------------------------------------------------------------------------


def test_counted_ones_stay_in_the_snapshot(tmp_path: Path) -> None:
    store = Store(tmp_path)
    batch = batch_of([A, LIKE_A])
    snapshot = refresh(store, 1, pool(COUNT), a=batch)
    assert same(content_of(store, snapshot), batch)
    assert (snapshot.near_duplicates, snapshot.near_duplicates_dropped) == (1, 0)
    assert store.metric("near_duplicate_samples_total", fate="kept") == 1


def test_near_duplicates_and_copies_have_separate_counts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    snapshot = refresh(store, 1, pool(DROP), a=batch_of([A, B]), b=batch_of([LIKE_A, B, LIKE_B]))
    assert same(content_of(store, snapshot), batch_of([A, B]))
    assert (snapshot.samples, snapshot.duplicates) == (2, 1)
    assert (snapshot.near_duplicates, snapshot.near_duplicates_dropped) == (2, 2)
    assert store.metric("near_duplicate_samples_total", fate="left out") == 2
    assert store.held_bytes() == snapshot.size_bytes


def test_a_better_one_of_a_later_device_takes_the_place(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, later = batch_of([A, B], [20, 20]), batch_of([LIKE_A], [10])
    snapshot = refresh(store, 1, pool(KEEP_BETTER), a=first, b=later)
    assert [shard.samples for shard in snapshot.shards] == [1, 1]
    assert same(content_of(store, snapshot), batch_of([B, LIKE_A], [20, 10]))
    assert snapshot.leakage.nearest_max == 20
    assert (snapshot.near_duplicates, snapshot.near_duplicates_dropped) == (1, 1)


def test_carried_over_samples_count_as_earlier(tmp_path: Path) -> None:
    store = Store(tmp_path)
    spec = pool(replace(DROP, refresh="accumulate"))
    first = refresh(store, 1, spec, a=batch_of([A]))
    second = refresh(store, 2, spec, a=batch_of([LIKE_A, B]))
    assert same(content_of(store, second), batch_of([A, B]))
    assert second.shards[0] == first.shards[0]
    assert (second.near_duplicates, second.near_duplicates_dropped) == (1, 1)


def test_a_better_sample_replaces_a_carried_over_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    spec = pool(replace(KEEP_BETTER, refresh="accumulate"))
    first = refresh(store, 1, spec, a=batch_of([A, B], [20, 20]), b=batch_of([blotches(3)]))
    second = refresh(store, 2, spec, c=batch_of([LIKE_A, noisy(blotches(3))], [10, 30]))
    assert [shard.samples for shard in second.shards] == [1, 1, 1]
    assert second.shards[1] == first.shards[1]  # untouched, so nobody fetches it again
    assert second.carried_samples == 2
    assert same(content_of(store, second), batch_of([B, blotches(3), LIKE_A], [20, 12, 10]))
    assert (second.near_duplicates, second.near_duplicates_dropped) == (2, 2)


def test_a_shard_of_which_all_was_replaced_is_gone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    spec = pool(replace(KEEP_BETTER, refresh="accumulate"))
    refresh(store, 1, spec, a=batch_of([A], [20]))
    second = refresh(store, 2, spec, a=batch_of([LIKE_A], [10]))
    assert (len(second.shards), second.carried_samples) == (1, 0)


def test_a_replaced_snapshot_leaves_nothing_to_look_like(tmp_path: Path) -> None:
    store = Store(tmp_path)
    refresh(store, 1, pool(DROP), a=batch_of([A]))
    second = refresh(store, 2, pool(DROP), a=batch_of([LIKE_A]))
    assert (second.samples, second.near_duplicates) == (1, 0)


def test_in_a_pool_that_is_too_large_nobody_looks_and_the_snapshot_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path)
    spec = pool(replace(DROP, near_max_samples=2, refresh="accumulate"))
    first = refresh(store, 1, spec, a=batch_of([A, LIKE_A]))
    assert (first.samples, first.near_duplicates_dropped, first.near_duplicates_unknown) == (
        *(1, 1),
        False,
    )
    second = refresh(store, 2, spec, b=batch_of([LIKE_B, B]))  # with that which is taken over
    assert (second.samples, second.near_duplicates, second.near_duplicates_unknown) == (3, 0, True)
