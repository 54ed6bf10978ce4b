from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from hfmds.data.splits import SplitSpec, dirichlet, iid, label_skew, split
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


def test_splits_never_change():
    # Published results with these seeds must stay reproducible.
    labels = np.tile(np.arange(10), 30)
    by_dirichlet = dirichlet(labels, 7, 0.01, 3, samples_per_device=12)
    assert iid(labels, 7, 3)[0][:5].tolist() == [274, 100, 108, 153, 42]
    assert label_skew(labels, 10, 2, 3)[0][:5].tolist() == [216, 163, 146, 296, 196]
    assert label_skew(labels, 7, 3, 3, 12)[-1][-3:].tolist() == [31, 216, 80]
    assert by_dirichlet[0][:5].tolist() == [224, 204, 264, 114, 194]
    assert by_dirichlet[-1][-3:].tolist() == [65, 25, 215]


def test_iid_uses_as_many_images_as_possible_and_mixes_the_classes():
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


def test_label_skew_varies_the_combinations_of_classes():
    hands = [frozenset(LABELS[shard].tolist()) for shard in label_skew(LABELS, 20, 2, seed=5)]
    assert {len(hand) for hand in hands} == {2}
    assert len(set(hands)) > 10  # repeated pairs would give five
    assert [sum(c in hand for hand in hands) for c in range(10)] == [4] * 10


@pytest.mark.parametrize("classes_per_device", [3, 7, 9])
def test_label_skew_never_deals_a_device_the_same_class_twice(classes_per_device: int):
    hands = [set(LABELS[shard].tolist()) for shard in label_skew(LABELS, 9, classes_per_device, 1)]
    assert {len(hand) for hand in hands} == {classes_per_device}
    holders = [sum(c in hand for hand in hands) for c in range(10)]
    assert max(holders) - min(holders) <= 2


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


SPECS = {
    "iid": SplitSpec("iid", 6),
    "label-skew": SplitSpec("label-skew", 10, classes_per_device=2),
    "dirichlet": SplitSpec("dirichlet", 6, concentration=0.1),
}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (SplitSpec("iid", 4, samples_per_device=12), iid(LABELS, 4, 9, 12)),
        (
            SplitSpec("label-skew", 4, classes_per_device=3, samples_per_device=12),
            label_skew(LABELS, 4, 3, 9, 12),
        ),
        (
            SplitSpec("dirichlet", 4, concentration=0.5, samples_per_device=12),
            dirichlet(LABELS, 4, 0.5, 9, 12),
        ),
        (SplitSpec("iid", 4, unequal=0.5), iid(LABELS, 4, 9, unequal=0.5)),
    ],
    ids=lambda value: value.label if isinstance(value, SplitSpec) else "",
)
def test_a_specification_selects_its_split(spec: SplitSpec, expected: list[np.ndarray]):
    shards = split(LABELS, spec, seed=9)
    assert [shard.tolist() for shard in shards] == [shard.tolist() for shard in expected]


@pytest.mark.parametrize("kind", SPECS)
def test_unequal_shards_are_disjoint_repeatable_and_of_different_sizes(kind: str):
    spec = dataclasses.replace(SPECS[kind], unequal=0.5)
    shards = split(LABELS, spec, seed=3)
    assert len(shards) == spec.devices
    sizes = [len(shard) for shard in shards]
    assert len(set(sizes)) > 1
    assert min(sizes) >= 1
    everything = np.concatenate(shards)
    assert len(np.unique(everything)) == len(everything)
    np.testing.assert_array_equal(everything, np.concatenate(split(LABELS, spec, seed=3)))
    assert sizes != [len(shard) for shard in split(LABELS, spec, seed=4)]


def test_unequal_sizes_are_log_normal_around_samples_per_device():
    labels = np.zeros(400_000, np.int64)
    spec = SplitSpec("iid", 2000, samples_per_device=150, unequal=0.5)
    sizes = np.array([len(shard) for shard in split(labels, spec, seed=0)])
    # Rounding down takes half a sample from each, on average.
    assert 149.4 < sizes.mean() < 149.6
    assert np.log(sizes).std() == pytest.approx(0.5, abs=0.02)
    assert np.median(np.log(sizes)) == pytest.approx(np.log(sizes).mean(), abs=0.03)  # symmetric


def test_unequal_label_skew_has_each_class_of_a_device_equally_often():
    shards = label_skew(LABELS, 7, 3, seed=2, unequal=0.6)
    for shard in shards:
        counts = np.bincount(LABELS[shard], minlength=10)
        assert (counts > 0).sum() == 3
        assert len(set(counts[counts > 0].tolist())) == 1
    held = np.bincount(LABELS[np.concatenate(shards)], minlength=10)
    assert held.max() <= 30
    assert held.max() >= 30 - 3  # the rarest class is used up, except for rounding


def test_dirichlet_keeps_its_skew_with_unequal_shards():
    for shard in dirichlet(LABELS, 5, 1e-3, seed=1, samples_per_device=15, unequal=0.3):
        assert np.bincount(LABELS[shard]).max() == len(shard)


def test_a_tiny_concentration_is_one_class_per_device():
    for shard in dirichlet(LABELS, 5, 1e-300, seed=0, samples_per_device=6):
        assert len(classes_of(shard)) == 1


@pytest.mark.parametrize("kind", SPECS)
def test_a_split_that_leaves_a_device_empty_names_it(kind: str):
    spec = dataclasses.replace(SPECS[kind], unequal=8.0)
    with pytest.raises(ConfigurationError, match=r"device \d+ .* unequal 8"):
        split(LABELS, spec, seed=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "label_skew"}, "split kind 'label_skew' is unknown; did you mean label-skew?"),
        ({"kind": "Dirichlet"}, "split kind 'Dirichlet' is unknown; did you mean dirichlet?"),
        ({"kind": "zipf"}, "'zipf' is unknown; known are iid, label-skew, dirichlet"),
        ({"kind": "label-skew"}, "a label-skew split needs classes_per_device"),
        ({"kind": "dirichlet"}, "a dirichlet split needs concentration"),
        ({"concentration": 0.1}, "concentration is given, but a split of kind iid has none; leave"),
        ({"classes_per_device": 2}, "classes_per_device is given, but .* choose kind label-skew"),
        ({"devices": 0}, "0 devices: there must be at least 1"),
        ({"kind": "label-skew", "classes_per_device": 0}, "0 classes per device: must be at least"),
        ({"kind": "dirichlet", "concentration": 0.0}, "concentration 0.0: must be above 0"),
        ({"kind": "dirichlet", "concentration": -1.0}, "concentration -1.0: must be above 0"),
        ({"samples_per_device": 0}, "0 samples per device: must be at least 1"),
        ({"unequal": -0.1}, "unequal -0.1: must be 0"),
        ({"unequal": float("nan")}, "unequal nan: must be 0"),
    ],
)
def test_an_impossible_specification_is_refused(fields: dict, message: str):
    with pytest.raises(ConfigurationError, match=message):
        SplitSpec(**({"kind": "iid", "devices": 3} | fields))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            SplitSpec("label-skew", 5, classes_per_device=11),
            "11 classes per device: must be 1 to 10",
        ),
        (SplitSpec("iid", 301), "300 samples cannot give 301 devices 1 each; use fewer devices"),
        (SplitSpec("dirichlet", 3, concentration=1, samples_per_device=101), "devices 101 each"),
    ],
)
def test_a_specification_beyond_the_data_is_refused(spec: SplitSpec, message: str):
    with pytest.raises(ConfigurationError, match=message):
        split(LABELS, spec, seed=0)


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        (SplitSpec("iid", 3), "IID"),
        (SplitSpec("label-skew", 3, classes_per_device=1), "1 class per device"),
        (SplitSpec("label-skew", 3, classes_per_device=2), "2 classes per device"),
        (SplitSpec("dirichlet", 3, concentration=0.01), "Dirichlet(0.01)"),
        (SplitSpec("dirichlet", 3, concentration=1, unequal=0.5), "Dirichlet(1), unequal 0.5"),
    ],
)
def test_a_split_has_a_short_label(spec: SplitSpec, label: str):
    assert spec.label == label
