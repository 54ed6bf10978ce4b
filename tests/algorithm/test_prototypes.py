from __future__ import annotations

import numpy as np
import pytest

from hfmds.algorithm.prototypes import ClassMeans, update_prototypes
from hfmds.errors import InvalidInput

FEATURES = np.array([[1, 2], [3, 6], [10, 0]], np.float32)
LABELS = np.array([4, 4, 7])


def means() -> ClassMeans:
    found = ClassMeans()
    found.add(FEATURES, LABELS)
    return found


def test_means_are_over_all_that_was_added_however_it_came():
    by_two = ClassMeans()
    by_two.add(FEATURES[:1], LABELS[:1])
    by_two.add(FEATURES[1:], LABELS[1:])
    assert {c: mean.tolist() for c, mean in by_two.items()} == {4: [2, 4], 7: [10, 0]}


def test_the_first_prototype_is_the_class_mean():
    prototypes = update_prototypes({}, means(), momentum=0.9)
    assert {c: p.tolist() for c, p in prototypes.items()} == {4: [2, 4], 7: [10, 0]}
    assert all(p.dtype == np.float32 for p in prototypes.values())


def test_lambda_weighs_the_previous_prototype():
    previous = {4: np.array([6, 0], np.float32)}
    prototypes = update_prototypes(previous, means(), momentum=0.25)
    assert prototypes[4].tolist() == [0.75 * 2 + 0.25 * 6, 0.75 * 4]  # (1-lambda) z + lambda zbar
    assert previous[4].tolist() == [6, 0]


def test_an_absent_class_keeps_its_prototype():
    prototypes = update_prototypes({1: np.ones(2, np.float32)}, means(), momentum=0.5)
    assert sorted(prototypes) == [1, 4, 7]
    assert prototypes[1].tolist() == [1, 1]


def test_prototypes_of_another_model_are_refused():
    with pytest.raises(InvalidInput, match=r"class 7 has 3 features"):
        update_prototypes({7: np.ones(3, np.float32)}, means(), momentum=0.5)
