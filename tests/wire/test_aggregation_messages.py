"""How a run aggregates and compresses, there and back, and what the way back refuses."""

import math
from dataclasses import replace

import pytest

from hfmds.domain.recipe import RULES, SERVER_OPTIMISERS, AggregationRecipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import RunSpec
from hfmds.errors import InvalidInput
from hfmds.v1 import common_pb2
from hfmds.wire.conversions.common import recipe_from, recipe_message
from tests.wire import examples

AGGREGATIONS = {
    "default": AggregationRecipe(),
    "by samples": AggregationRecipe(
        weighting="samples", optimiser="fedavgm", server_learning_rate=0.5, momentum=0.25
    ),
    "median": AggregationRecipe(rule="median", clip_norm=0.5, optimiser="fedavgm"),
    "trimmed mean": AggregationRecipe(rule="trimmed_mean", trimmed_fraction=0.375),
    "multi-krum": AggregationRecipe(rule="multi_krum", hostile_devices=2, kept_devices=3),
    "krum of nobody": AggregationRecipe(rule="multi_krum", hostile_devices=0),
    "adam": AggregationRecipe(optimiser="fedadam", beta1=0.0, tau=0.5),
}


def sent(aggregation: AggregationRecipe) -> common_pb2.Recipe:
    message = recipe_message(replace(examples.RECIPE, aggregation=aggregation))
    return common_pb2.Recipe.FromString(message.SerializeToString())


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_a_way_to_aggregate_comes_back_as_it_was(name: str) -> None:
    assert recipe_from(sent(AGGREGATIONS[name])).aggregation == AGGREGATIONS[name]


@pytest.mark.parametrize("compression", ["none", "fp16", "int8"])
def test_a_compression_comes_back_as_it_was(compression: str) -> None:
    message = recipe_message(replace(examples.RECIPE, compression=compression))
    assert recipe_from(message).compression == compression


def test_every_rule_and_optimiser_has_its_message() -> None:
    choices = common_pb2.Aggregation.DESCRIPTOR.oneofs_by_name
    for oneof, known in (("rule", RULES), ("optimiser", SERVER_OPTIMISERS)):
        fields = {
            choice.name: tuple(field.name for field in choice.message_type.fields)
            for choice in choices[oneof].fields
        }
        assert fields == {name: known[name] for name in known if name != "none"}


def test_what_is_not_set_is_the_uniform_mean_uncompressed() -> None:
    message = sent(AggregationRecipe())
    message.ClearField("aggregation")
    message.ClearField("compression")
    recipe = recipe_from(message)
    assert recipe.aggregation == AggregationRecipe()
    assert recipe.compression == "none"
    message.aggregation.mean.SetInParent()  # without a weighting
    assert recipe_from(message).aggregation == AggregationRecipe()


def test_a_choice_of_a_later_version_is_refused() -> None:
    message = sent(AggregationRecipe())
    message.compression = 9  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="Compression 9"):
        recipe_from(message)
    message = sent(AggregationRecipe())
    message.aggregation.mean.weighting = 7  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="Weighting 7 is not known to this version"):
        recipe_from(message)


@pytest.mark.parametrize(
    ("name", "part", "field", "value", "complaint"),
    [
        ("trimmed mean", "trimmed_mean", "trimmed_fraction", 0.5, r"in \[1e-06, 0.5\)"),
        ("trimmed mean", "trimmed_mean", "trimmed_fraction", 0.0, r"in \[1e-06, 0.5\)"),
        ("trimmed mean", "trimmed_mean", "trimmed_fraction", math.nan, "must be a number"),
        ("multi-krum", "multi_krum", "hostile_devices", -1, "at least 0"),
        ("multi-krum", "multi_krum", "kept_devices", 8, "cohort_size is 9.* at least 10"),
        ("by samples", "fedavgm", "momentum", 1.0, r"in \[0, 1\)"),
        ("by samples", "fedavgm", "server_learning_rate", -1.0, "at least 0"),
        ("adam", "fedadam", "tau", 0.0, "above 0"),
        ("adam", "fedadam", "beta2", math.inf, "must be a number"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(
    name: str, part: str, field: str, value: float, complaint: str
) -> None:
    message = sent(AGGREGATIONS[name])
    setattr(getattr(message.aggregation, part), field, value)
    with pytest.raises(InvalidInput, match=complaint):
        recipe_from(message)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_norm_that_is_none_is_refused(value: float) -> None:
    message = sent(AggregationRecipe())
    message.aggregation.clip_norm = value
    with pytest.raises(InvalidInput, match=r"aggregation\.clip_norm is .*at least 0"):
        recipe_from(message)


def test_a_run_that_could_close_rounds_with_too_few_devices_for_its_rule_is_refused() -> None:
    recipe = replace(examples.RECIPE, aggregation=AGGREGATIONS["multi-krum"])
    RunSpec(recipe, RoundPolicy(minimum_devices=7))
    with pytest.raises(InvalidInput, match=r"minimum_devices is 6.*least 7"):
        RunSpec(recipe, RoundPolicy(minimum_devices=6))
