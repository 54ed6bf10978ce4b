from __future__ import annotations

import numpy as np

from hfmds.algorithm.models.weight_groups import as_part, classifier_of, part_of

WEIGHTS = {
    name: np.full(1, value, np.float32)
    for value, name in enumerate(["conv.weight", "gan/made/up.bias", "gan/judging/down", "b"])
}


def test_the_classifiers_weights_are_those_without_a_part():
    assert list(classifier_of(WEIGHTS)) == ["conv.weight", "b"]


def test_a_part_has_the_names_its_network_knows_and_no_others():
    assert part_of(WEIGHTS, "gan/made") == {"up.bias": WEIGHTS["gan/made/up.bias"]}
    assert part_of(WEIGHTS, "gan/mad") == {}


def test_naming_a_part_and_taking_it_out_are_inverse():
    named = as_part("generator", {"up.bias": WEIGHTS["b"]})
    assert list(named) == ["generator/up.bias"]
    assert part_of(named, "generator") == {"up.bias": WEIGHTS["b"]}
    assert classifier_of(named) == {}
