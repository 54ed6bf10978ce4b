from __future__ import annotations

import numpy as np
import pytest

from hfmds.algorithm.prototypes import update_prototypes
from hfmds.errors import InvalidInput

FEATURES = np.array([[1, 2], [3, 6], [10, 0]], np.float32)
LABELS = np.array([4, 4, 7])


def test_the_first_prototype_is_the_class_mean():
    prototypes = update_prototypes({}, FEATURES, LABELS, momentum=0.9)
    assert {c: p.tolist() for c, p in prototypes.items()} == {4: [2, 4], 7: [10, 0]}
    assert all(p.dtype == np.float32 for p in prototypes.values())


def test_lambda_weighs_the_previous_prototype():
    previous = {4: np.array([6, 0], np.float32)}
    prototypes = update_prototypes(previous, FEATURES, LABELS, momentum=0.25)
    assert prototypes[4].tolist() == [0.75 * 2 + 0.25 * 6, 0.75 * 4]  # (1-lambda) z + lambda zbar
    assert previous[4].tolist() == [6, 0]


def test_an_absent_class_keeps_its_prototype():
    prototypes = update_prototypes({1: np.ones(2, np.float32)}, FEATURES, LABELS, momentum=0.5)
    assert sorted(prototypes) == [1, 4, 7]
    assert prototypes[1].tolist() == [1, 1]


def test_prototypes_of_another_model_are_refused():
    with pytest.raises(InvalidInput, match=r"class 7 has 3 features, the model 2"):
        update_prototypes({7: np.ones(3, np.float32)}, FEATURES, LABELS, momentum=0.5)
