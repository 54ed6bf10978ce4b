"""What a recipe may say about aggregation and compression."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hfmds.domain.recipe import AggregationRecipe
from hfmds.errors import InvalidInput
from tests.algorithm.examples import RECIPE


def test_the_default_is_the_papers_mean() -> None:
    assert RECIPE.aggregation == AggregationRecipe(weighting="uniform", rule="mean")
    assert (RECIPE.aggregation.optimiser, RECIPE.aggregation.clip_norm) == ("none", 0)
    assert RECIPE.compression == "none"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"rule": "mode"}, "aggregation.rule is 'mode'; it must be one of mean, median, trimmed"),
        ({"weighting": "size"}, "aggregation.weighting is 'size'; .* uniform, samples"),
        ({"optimiser": "sgd"}, "aggregation.optimiser is 'sgd'; .* none, fedavgm, fedadam"),
        ({"clip_norm": -1.0}, "aggregation.clip_norm is -1.0; it must be at least 0"),
        # Settings that would do nothing.
        (
            {"rule": "median", "weighting": "samples"},
            "weighting is samples, but aggregation.rule is median; leave it out, or choose mean",
        ),
        ({"trimmed_fraction": 0.2}, "trimmed_fraction is 0.2, .*rule is mean; .*trimmed_mean"),
        ({"hostile_devices": 2}, "hostile_devices is 2, .*choose multi_krum"),
        ({"server_learning_rate": 0.5}, "optimiser is none; .*choose fedavgm or fedadam"),
        ({"optimiser": "fedadam", "momentum": 0.5}, "momentum is 0.5, .*choose fedavgm"),
        ({"optimiser": "fedavgm", "tau": 0.5}, "tau is 0.5, .*choose fedadam"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        AggregationRecipe(**settings)


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'zip'; .*int8"):
        replace(RECIPE, compression="zip")


def test_a_cohort_too_small_for_the_rule_is_refused() -> None:
    krum = AggregationRecipe(rule="multi_krum", hostile_devices=1)
    replace(RECIPE, aggregation=krum, cohort_size=5)
    with pytest.raises(InvalidInput, match=r"cohort_size is 4.*least 5 dev"):
        replace(RECIPE, aggregation=krum, cohort_size=4)
