"""Conversion pairs for the types of common.proto: `x_message(value)` and `x_from(message)`.

The `from` direction is the border: a message that lacks a required part or breaks a limit is
refused here with InvalidInput, so nothing behind it has to doubt its input.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any, TypeVar

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

from hfmds.domain.digest import Digest
from hfmds.domain.histograms import Histogram, LeakageHistograms
from hfmds.domain.learning import Evaluation, LeakageSummary, Traffic
from hfmds.domain.methods import METHODS, Method
from hfmds.domain.pool_policy import NO_LIMIT, PoolPolicy
from hfmds.domain.recipe import (
    RULES,
    SERVER_OPTIMISERS,
    AggregationRecipe,
    ModelSpec,
    Normalisation,
    Recipe,
    Sampling,
    TrainingRecipe,
    default_pool,
)
from hfmds.errors import InvalidInput
from hfmds.v1 import common_pb2

Value = TypeVar("Value")


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    """Return the field names of a value class."""
    return tuple(field.name for field in dataclasses.fields(kind))


def flat_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a value as keyword arguments of a message with the same fields."""
    return {name: getattr(value, name) for name in _names(type(value))}  # type: ignore[arg-type]


def flat_value(kind: type[Value], message: Message) -> Value:
    """Make a value of a message with the same fields; refuse NaN and infinities."""
    names = _names(kind)  # type: ignore[arg-type]
    require_finite(message, *names)
    return kind(**{name: getattr(message, name) for name in names})


def require_part(message: Message, *names: str) -> None:
    """Refuse a message that lacks one of its required sub-messages."""
    for name in names:
        if not message.HasField(name):
            raise InvalidInput(f"{message.DESCRIPTOR.name}.{name} is missing")


def require_finite(message: Message, *names: str) -> None:
    """Refuse a message with a NaN or an infinity in one of these fields."""
    for name in names:
        value = getattr(message, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidInput(f"{message.DESCRIPTOR.name}.{name} is {value}; it must be a number")


def require_count(message: Message, least: int, *names: str) -> None:
    """Refuse a message in which one of these numbers is below `least`."""
    for name in names:
        value = getattr(message, name)
        if value < least:
            raise InvalidInput(
                f"{message.DESCRIPTOR.name}.{name} is {value}; it must be at least {least}"
            )


def digest_message(digest: Digest) -> common_pb2.Digest:
    """To the wire."""
    return common_pb2.Digest(sha256=digest.sha256, size_bytes=digest.size_bytes)


def digest_from(message: common_pb2.Digest) -> Digest:
    """From the wire."""
    return Digest(message.sha256, message.size_bytes)


def model_message(model: ModelSpec) -> common_pb2.ModelSpec:
    """To the wire."""
    return common_pb2.ModelSpec(**flat_fields(model))


def model_from(message: common_pb2.ModelSpec) -> ModelSpec:
    """From the wire."""
    return flat_value(ModelSpec, message)


def recipe_message(recipe: Recipe) -> common_pb2.Recipe:
    """To the wire."""
    message = common_pb2.Recipe(
        model=model_message(recipe.model),
        normalisation=common_pb2.Normalisation(**flat_fields(recipe.normalisation)),
        rounds=recipe.rounds,
        seed=recipe.seed,
        training=common_pb2.TrainingRecipe(**flat_fields(recipe.training)),
        cohort_size=recipe.cohort_size,
        class_names=recipe.class_names,
        sampling=_sampling_message(recipe.sampling),
        aggregation=_aggregation_message(recipe.aggregation),
        compression=f"COMPRESSION_{recipe.compression.upper()}",
        pool=pool_policy_message(recipe.pool) if recipe.method.samples_per_device else None,
    )
    # The choices of the oneof have the methods' names, their messages the settings' fields.
    method = getattr(message, recipe.method.name)
    method.CopyFrom(type(method)(**flat_fields(recipe.method)))
    return message


def recipe_from(message: common_pb2.Recipe) -> Recipe:
    """From the wire."""
    require_part(message, "model", "normalisation", "training")
    method = _method_from(message)
    return Recipe(
        model=model_from(message.model),
        normalisation=Normalisation(
            tuple(message.normalisation.mean), tuple(message.normalisation.std)
        ),
        rounds=message.rounds,
        seed=message.seed,
        training=flat_value(TrainingRecipe, message.training),
        method=method,
        cohort_size=message.cohort_size,
        class_names=tuple(message.class_names),
        sampling=_sampling_from(message.sampling),
        aggregation=_aggregation_from(message.aggregation),
        compression=_choice_from(common_pb2.Compression, message.compression, "none"),
        pool=pool_policy_from(message.pool) if message.HasField("pool") else default_pool(method),
    )


def _method_from(message: common_pb2.Recipe) -> Method:
    name = message.WhichOneof("method")
    if name is None:
        raise InvalidInput("Recipe.method is missing, or of a kind this version does not know")
    return flat_value(METHODS[name], getattr(message, name))


def _sampling_message(sampling: Sampling) -> common_pb2.Sampling:
    message = common_pb2.Sampling()
    match sampling.strategy:
        case "by_samples":
            message.by_samples.SetInParent()
        case "power_of_choice":
            message.power_of_choice.candidates = sampling.candidates
    return message


def _sampling_from(message: common_pb2.Sampling) -> Sampling:
    strategy: Any = message.WhichOneof("strategy") or "uniform"
    return Sampling(strategy, message.power_of_choice.candidates)


def _aggregation_message(aggregation: AggregationRecipe) -> common_pb2.Aggregation:
    message = common_pb2.Aggregation(clip_norm=aggregation.clip_norm)
    # The choices of the oneofs have the names of rules and optimisers, their messages the fields.
    for choice, settings in (
        (aggregation.rule, RULES[aggregation.rule]),
        (aggregation.optimiser, SERVER_OPTIMISERS[aggregation.optimiser]),
    ):
        if choice != "none":
            part = getattr(message, choice)
            part.SetInParent()
            for name in settings:
                value = getattr(aggregation, name)
                if name == "weighting":
                    value = common_pb2.Weighting.Value(f"WEIGHTING_{value.upper()}")
                setattr(part, name, value)
    return message


def _aggregation_from(message: common_pb2.Aggregation) -> AggregationRecipe:
    rule: Any = message.WhichOneof("rule") or "mean"
    optimiser: Any = message.WhichOneof("optimiser") or "none"
    values: dict[str, Any] = {}
    for choice, settings in ((rule, RULES[rule]), (optimiser, SERVER_OPTIMISERS[optimiser])):
        if choice != "none":
            part = getattr(message, choice)
            require_finite(part, *settings)
            values |= {name: getattr(part, name) for name in settings}
    if "weighting" in values:
        values["weighting"] = _choice_from(common_pb2.Weighting, values["weighting"], "uniform")
    return AggregationRecipe(rule=rule, clip_norm=message.clip_norm, optimiser=optimiser, **values)


_POOL_CHOICES = {
    "pixel_type": common_pb2.PixelType,
    "leakage_action": common_pb2.LeakageAction,
    "near_action": common_pb2.NearAction,
    "refresh": common_pb2.Refresh,
}


def pool_policy_message(policy: PoolPolicy) -> common_pb2.PoolPolicy:
    """To the wire; a limit that is none is not said."""
    values = flat_fields(policy)
    for name, none in NO_LIMIT.items():
        if values[name] == none:
            del values[name]
    for name in _POOL_CHOICES:
        values[name] = f"{name}_{values[name]}".upper()
    if policy.refresh != "decay":
        del values["refresh_keep_fraction"]
    return common_pb2.PoolPolicy(**values)


def pool_policy_from(message: common_pb2.PoolPolicy) -> PoolPolicy:
    """From the wire."""
    default = flat_fields(PoolPolicy())
    values = {name: getattr(message, name) for name in default}
    require_finite(message, *values)
    for name in NO_LIMIT:
        if not message.HasField(name):
            values[name] = default[name]
    for name, kind in _POOL_CHOICES.items():
        values[name] = _choice_from(kind, values[name], default[name])
    if values["refresh"] != "decay" and not message.refresh_keep_fraction:
        values["refresh_keep_fraction"] = default["refresh_keep_fraction"]
    return PoolPolicy(**values)


def _choice_from(kind: EnumTypeWrapper, number: int, unspecified: str) -> Any:
    """Convert COMPRESSION_INT8 to "int8"; refuse numbers of a later version."""
    if not number:
        return unspecified
    by_number = {value: name for name, value in kind.items()}
    if number not in by_number:
        raise InvalidInput(f"{kind.DESCRIPTOR.name} {number} is not known to this version")
    prefix = by_number[0].removesuffix("UNSPECIFIED")
    return by_number[number].removeprefix(prefix).lower()


def leakage_message(leakage: LeakageSummary) -> common_pb2.LeakageSummary:
    """To the wire."""
    return common_pb2.LeakageSummary(**flat_fields(leakage))


def leakage_from(message: common_pb2.LeakageSummary) -> LeakageSummary:
    """From the wire."""
    return flat_value(LeakageSummary, message)


def histograms_message(histograms: LeakageHistograms) -> common_pb2.LeakageHistograms:
    """To the wire."""
    return common_pb2.LeakageHistograms(
        **{
            name: common_pb2.Histogram(**flat_fields(histogram))
            for name, histogram in flat_fields(histograms).items()
        }
    )


def histograms_from(message: common_pb2.LeakageHistograms) -> LeakageHistograms:
    """From the wire; an older store says none, which is as good as one without samples."""
    parts = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    return LeakageHistograms(
        **{
            name: Histogram(part.lowest, part.width, tuple(part.counts))
            for name, part in parts.items()
            if message.HasField(name)
        }
    )


def traffic_message(traffic: Traffic) -> common_pb2.Traffic:
    """To the wire."""
    return common_pb2.Traffic(**flat_fields(traffic))


def traffic_from(message: common_pb2.Traffic) -> Traffic:
    """From the wire."""
    require_count(message, 0, "received_bytes", "sent_bytes")
    return flat_value(Traffic, message)


def evaluation_message(evaluation: Evaluation) -> common_pb2.Evaluation:
    """To the wire."""
    return common_pb2.Evaluation(**flat_fields(evaluation))


def evaluation_from(message: common_pb2.Evaluation) -> Evaluation:
    """From the wire; the loss of a model that diverged is NaN, and must not be refused here."""
    return Evaluation(message.accuracy, message.loss, message.samples)
