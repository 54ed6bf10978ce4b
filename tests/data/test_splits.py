from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hfmds.data.splits import dirichlet, iid, label_skew
from hfmds.errors import ConfigurationError

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 30))  # 300 samples

Split = Callable[[int], list[np.ndarray]]
SPLITS: dict[str, Split] = {
    "iid": lambda seed: iid(LABELS, 7, seed),
    "label skew": lambda seed: label_skew(LABELS, 10, 2, seed),
    "dirichlet": lambda seed: dirichlet(LABELS, 7, 0.1, seed),
}


def classes_of(shard: np.ndarray) -> set[int]:
    return set(LABELS[shard].tolist())


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
def test_shards_are_disjoint_equal_and_repeatable(split: Split):
    shards = split(3)
    assert len({len(shard) for shard in shards}) == 1
    everything = np.concatenate(shards)
    assert len(np.unique(everything)) == len(everything)
    assert everything.dtype == np.int64
    np.testing.assert_array_equal(everything, np.concatenate(split(3)))
    assert not np.array_equal(everything, np.concatenate(split(4)))


def test_iid_uses_all_it_can_and_mixes_the_classes():
    shards = iid(LABELS, 7, seed=0)
    assert [len(shard) for shard in shards] == [42] * 7
    assert all(len(classes_of(shard)) >= 8 for shard in shards)


@pytest.mark.parametrize("classes_per_device", [1, 2, 3])
def test_label_skew_gives_each_device_its_classes_in_equal_parts(classes_per_device: int):
    shards = label_skew(LABELS, 10, classes_per_device, seed=5)
    for shard in shards:
        counts = np.bincount(LABELS[shard], minlength=10)
        assert sorted(set(counts.tolist())) == [0, 30 // classes_per_device]
        assert (counts > 0).sum() == classes_per_device
    assert set().union(*map(classes_of, shards)) == set(range(10))


def test_label_skew_with_fewer_places_than_classes_leaves_classes_out():
    shards = label_skew(LABELS, 3, 2, seed=5)
    assert [len(classes_of(shard)) for shard in shards] == [2, 2, 2]
    assert len(set().union(*map(classes_of, shards))) == 6


def test_label_skew_shards_are_as_large_as_the_rarest_class_allows():
    labels = np.array([0] * 50 + [1] * 8)
    assert [len(shard) for shard in label_skew(labels, 2, 1, seed=0)] == [8, 8]


def test_dirichlet_at_small_concentration_is_nearly_one_class_per_device():
    shards = dirichlet(LABELS, 10, 0.01, seed=1, samples_per_device=10)
    largest = [np.bincount(LABELS[shard]).max() / len(shard) for shard in shards]
    assert np.mean(largest) > 0.85


def test_dirichlet_at_large_concentration_is_nearly_uniform():
    labels = np.tile(np.arange(10), 1000)
    for shard in dirichlet(labels, 5, 1e4, seed=1, samples_per_device=1000):
        shares = np.bincount(labels[shard], minlength=10) / 1000
        np.testing.assert_allclose(shares, 0.1, atol=0.04)


def test_dirichlet_can_use_every_sample_even_at_severe_skew():
    shards = dirichlet(LABELS, 20, 0.001, seed=2)
    assert sorted(np.concatenate(shards)) == list(range(300))


def test_samples_per_device_is_kept():
    for shards in (
        iid(LABELS, 4, 0, samples_per_device=12),
        label_skew(LABELS, 4, 3, 0, samples_per_device=12),
        dirichlet(LABELS, 4, 0.5, 0, samples_per_device=12),
    ):
        assert [len(shard) for shard in shards] == [12] * 4


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (lambda: iid(LABELS, 0, 0), "0 devices: there must be at least 1"),
        (lambda: iid(LABELS, 301, 0), "300 samples cannot give 301 devices 1 each"),
        (lambda: iid(LABELS, 3, 0, 101), "300 samples cannot give 3 devices 101 each"),
        (lambda: label_skew(LABELS, 0, 1, 0), "0 devices"),
        (lambda: label_skew(LABELS, 5, 0, 0), "0 classes per device: must be 1 to 10"),
        (lambda: label_skew(LABELS, 5, 11, 0), "11 classes per device: must be 1 to 10"),
        (lambda: label_skew(LABELS, 5, 2, 0, 5), "5 samples per device: must be a positive mul"),
        (lambda: label_skew(LABELS, 10, 1, 0, 31), "need 31 per class .* has only 30; ask for"),
        (lambda: label_skew(LABELS, 400, 1, 0), "too few samples for 400 devices"),
        (lambda: dirichlet(LABELS, 5, 0.0, 0), r"concentration 0.0: must be above 0"),
        (lambda: dirichlet(LABELS, 5, float("nan"), 0), r"concentration nan"),
        (lambda: dirichlet(LABELS, -1, 1.0, 0), "-1 devices"),
    ],
)
def test_impossible_splits_are_refused(split: Callable[[], object], message: str):
    with pytest.raises(ConfigurationError, match=message):
        split()
