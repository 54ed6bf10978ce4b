"""Every conversion pair, there and back, and what the way back refuses."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from hfmds.domain.devices import require_id
from hfmds.domain.learning import Evaluation, Traffic
from hfmds.domain.methods import METHODS
from hfmds.domain.recipe import Sampling
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import RunState
from hfmds.domain.tasks import RetryLater, TrainWork
from hfmds.errors import InvalidInput
from hfmds.v1 import admin_pb2, common_pb2, coordinator_pb2, fleet_pb2, synthesis_store_pb2
from hfmds.wire.conversions import (
    admin_calls,
    common,
    device_calls,
    events,
    fleet_calls,
    operations,
    store_calls,
)
from tests.wire import examples

Pair = tuple[Any, Callable[[Any], Message], Callable[[Any], Any]]

PAIRS: dict[str, Pair] = {
    "digest": (examples.WEIGHTS, common.digest_message, common.digest_from),
    "model": (examples.MODEL, common.model_message, common.model_from),
    "recipe": (examples.RECIPE, common.recipe_message, common.recipe_from),
    **{
        f"{name} recipe": (recipe, common.recipe_message, common.recipe_from)
        for name, recipe in examples.RECIPES.items()
    },
    "leakage": (examples.LEAKAGE, common.leakage_message, common.leakage_from),
    "traffic": (examples.TRAFFIC, common.traffic_message, common.traffic_from),
    "evaluation": (examples.EVALUATION, common.evaluation_message, common.evaluation_from),
    "profile": (examples.PROFILE, device_calls.profile_message, device_calls.profile_from),
    "train": (examples.TRAIN, device_calls.assignment_message, device_calls.assignment_from),
    "synthesise": (
        examples.SYNTHESISE,
        device_calls.assignment_message,
        device_calls.assignment_from,
    ),
    "evaluate": (examples.EVALUATE, device_calls.assignment_message, device_calls.assignment_from),
    "outcome assignment": (
        examples.TRAIN,
        device_calls.outcome_message,
        device_calls.outcome_from,
    ),
    "outcome retry later": (
        examples.RETRY_LATER,
        device_calls.outcome_message,
        device_calls.outcome_from,
    ),
    "outcome finished": (
        examples.FINISHED,
        device_calls.outcome_message,
        device_calls.outcome_from,
    ),
    "update report": (
        examples.UPDATE_REPORT,
        device_calls.update_report_message,
        device_calls.update_report_from,
    ),
    "synthesis report": (
        examples.SYNTHESIS_REPORT,
        partial(device_calls.synthesis_report_message, "device-1", "task-1"),
        device_calls.synthesis_report_from,
    ),
    "evaluation report": (
        examples.EVALUATION_REPORT,
        partial(device_calls.evaluation_report_message, "device-1", "task-1"),
        device_calls.evaluation_report_from,
    ),
    "unmeasured synthesis report": (
        examples.UNMEASURED_REPORT,
        partial(device_calls.synthesis_report_message, "device-1", "task-1"),
        device_calls.synthesis_report_from,
    ),
    "recipe sampling by samples": (
        replace(examples.RECIPE, sampling=Sampling("by_samples")),
        common.recipe_message,
        common.recipe_from,
    ),
    "policy": (examples.POLICY, admin_calls.policy_message, admin_calls.policy_from),
    "run spec": (examples.RUN_SPEC, admin_calls.spec_message, admin_calls.spec_from),
    "round": (examples.ROUND, admin_calls.round_message, admin_calls.round_from),
    "run": (examples.RUN, admin_calls.run_message, admin_calls.run_from),
    "device": (examples.DEVICE, admin_calls.device_message, admin_calls.device_from),
    "drain": (examples.DRAIN, operations.drain_message, operations.drain_from),
    "status": (examples.STATUS, operations.status_message, operations.status_from),
    "funnel": (examples.FUNNEL, operations.funnel_message, operations.funnel_from),
    "event": (
        examples.EVENT,
        events.event_message,
        partial(events.event_from, examples.EVENT.log_id),
    ),
    "timestamp": (examples.MOMENT, admin_calls.timestamp_message, admin_calls.timestamp_from),
    "pool spec": (examples.POOL_SPEC, store_calls.pool_spec_message, store_calls.pool_spec_from),
    "contribution": (
        examples.CONTRIBUTION,
        store_calls.contribution_message,
        store_calls.contribution_from,
    ),
    "pool policy": (
        examples.POOL_POLICY,
        common.pool_policy_message,
        common.pool_policy_from,
    ),
    "pool": (examples.POOL, store_calls.pool_message, store_calls.pool_from),
    "snapshot": (examples.SNAPSHOT, store_calls.snapshot_message, store_calls.snapshot_from),
    "shared shard": (
        examples.SHARED_SHARD,
        store_calls.shared_shard_message,
        store_calls.shared_shard_from,
    ),
    "enrolment token": (
        examples.ENROLMENT_TOKEN,
        fleet_calls.token_message,
        fleet_calls.token_from,
    ),
    "device token": (examples.DEVICE_TOKEN, fleet_calls.token_message, fleet_calls.token_from),
    "admin token": (examples.ADMIN_TOKEN, fleet_calls.token_message, fleet_calls.token_from),
    "member": (examples.MEMBER, fleet_calls.member_message, fleet_calls.member_from),
    "exclusions": (
        examples.EXCLUSIONS,
        fleet_calls.exclusions_message,
        fleet_calls.exclusions_from,
    ),
}

# What devices and operators send: a server must never compute with a NaN from outside.
SENT_TO_SERVERS = (
    *(f"{name} recipe" for name in examples.RECIPES),
    "policy",
    "run spec",
    "update report",
    "synthesis report",
    "pool spec",
)

# A number that was not measured is not there, and one that is needs no word that it is not.
EITHER = {
    "synthesis report": ["SubmitSynthesisRequest.accuracy_not_measured"],
    "unmeasured synthesis report": ["SubmitSynthesisRequest.synthetic_accuracy"],
    "run spec": ["RoundPolicy.asynchronous"],  # which excludes its recipe's cohort
    "run": ["RoundPolicy.asynchronous"],
    **{
        f"{name} recipe": ["Recipe.pool"]  # it has none
        for name, recipe in examples.RECIPES.items()
        if not recipe.method.samples_per_device
    },
}


def sent(name: str) -> Message:
    """The example's message as the other side gets it: through bytes."""
    value, to_message, _ = PAIRS[name]
    message = to_message(value)
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize("name", PAIRS)
def test_a_value_comes_back_as_it_was(name: str) -> None:
    value, _, from_message = PAIRS[name]
    assert from_message(sent(name)) == value


def unset_fields(message: Message) -> Iterator[str]:
    """Fields, at any depth, that nobody filled; the other choices of a oneof do not count."""
    for field in message.DESCRIPTOR.fields:
        chosen = field.containing_oneof and message.WhichOneof(field.containing_oneof.name)
        if chosen and chosen != field.name:
            continue
        value = getattr(message, field.name)
        if field not in [present for present, _ in message.ListFields()]:
            yield f"{message.DESCRIPTOR.name}.{field.name}"
        elif field.type == FieldDescriptor.TYPE_MESSAGE and not is_map(field):
            for part in value if field.is_repeated else [value]:
                yield from unset_fields(part)


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


@pytest.mark.parametrize("name", PAIRS)
def test_every_field_of_the_contract_is_filled(name: str) -> None:
    assert list(unset_fields(sent(name))) == EITHER.get(name, [])


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("recipe", "model"),
        ("recipe", "normalisation"),
        ("recipe", "training"),
        ("train", "recipe"),
        ("train", "weights"),
        ("update report", "update"),
        ("synthesis report", "batch"),
        ("synthesis report", "leakage"),
        ("run spec", "recipe"),
        ("run spec", "policy"),
        ("pool spec", "weights"),
        ("pool spec", "model"),
        ("contribution", "batch"),
    ],
)
def test_a_missing_part_is_refused_by_name(name: str, part: str) -> None:
    message = sent(name)
    message.ClearField(part)
    with pytest.raises(InvalidInput, match=f"{message.DESCRIPTOR.name}.{part} is missing"):
        PAIRS[name][2](message)


def test_a_missing_choice_is_refused() -> None:
    message = device_calls.assignment_message(examples.TRAIN)
    message.ClearField("train")
    with pytest.raises(InvalidInput, match=r"Assignment\.work is missing"):
        device_calls.assignment_from(message)


def test_an_outcome_of_a_later_version_has_the_device_ask_again() -> None:
    unknown = coordinator_pb2.CheckInResponse.FromString(bytes([15 << 3 | 2, 0]))  # in field 15
    outcome = device_calls.outcome_from(unknown)
    assert isinstance(outcome, RetryLater)
    assert outcome.after_seconds == 60
    assert "upgrade the device" in outcome.reason


def test_a_missing_or_unknown_method_is_refused() -> None:
    for name in examples.RECIPES:
        recipe = sent(f"{name} recipe")
        recipe.ClearField("method")
        with pytest.raises(InvalidInput, match=r"Recipe\.method is missing"):
            common.recipe_from(recipe)
        later = bytes([0x9A, 0x06, 0])  # an empty message in field 99, of a later version
        of_later_version = common_pb2.Recipe.FromString(recipe.SerializeToString() + later)
        with pytest.raises(InvalidInput, match="a kind this version does not know"):
            common.recipe_from(of_later_version)


def test_every_method_has_its_message() -> None:
    choices = common_pb2.Recipe.DESCRIPTOR.oneofs_by_name["method"].fields
    assert {choice.name for choice in choices} == METHODS.keys() == examples.METHODS.keys()
    for choice in choices:
        fields = dataclasses.fields(METHODS[choice.name])
        assert {f.name for f in choice.message_type.fields} == {f.name for f in fields}


@pytest.mark.parametrize(
    ("method", "field", "value", "complaint"),
    [
        ("fedprox", "mu", -1.0, "fedprox.mu is -1.0; it must be at least 0"),
        ("moon", "temperature", 0.0, "moon.temperature is 0.0; it must be above 0"),
        ("fedgen", "decay", 1.5, "fedgen.decay is 1.5"),
        ("fedgen", "generator_batch_size", 1, "fedgen.generator_batch_size is 1"),
        ("fedmix", "mixing", 1.0, "fedmix.mixing is 1.0"),
        ("fedgan", "gan_rounds", 0, "fedgan.gan_rounds is 0"),
        ("fedgan", "gan_rounds", 11, "fedgan prepares for 11"),
        ("hfmds", "every_rounds", 0, "hfmds.every_rounds is 0"),
    ],
)
def test_a_methods_setting_out_of_range_is_refused_by_name(
    method: str, field: str, value: float, complaint: str
) -> None:
    message = sent(f"{method} recipe")
    setattr(getattr(message, method), field, value)
    with pytest.raises(InvalidInput, match=complaint):
        common.recipe_from(message)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("profile", "samples", 0),
        ("update report", "samples", 0),
        ("synthesis report", "samples", -1),
        ("profile", "free_memory_bytes", -1),
        ("profile", "engine", "x" * 129),
        ("policy", "over_selection", 0.5),
        ("policy", "task_deadline_seconds", -1.0),
        ("profile", "software_version", "x" * 129),
        ("traffic", "sent_bytes", -1),
        ("pool spec", "round", 0),
        ("pool spec", "max_samples_per_device", 0),
        ("model", "classes", 0),
        ("recipe", "rounds", 0),
        ("recipe", "seed", -1),
        ("digest", "size_bytes", -1),
        ("digest", "sha256", "A" * 64),
        ("digest", "sha256", "a" * 64 + "\n"),
        ("pool spec", "run_id", "../run"),
        ("contribution", "device_id", "../device"),
        ("train", "run_uid", "../run"),
    ],
)
def test_a_value_out_of_range_is_refused(name: str, field: str, value: object) -> None:
    message = sent(name)
    setattr(message, field, value)
    with pytest.raises(InvalidInput):
        PAIRS[name][2](message)


def numbers(message: Message) -> Iterator[Callable[[float], str]]:
    """A setter for every floating-point number at any depth; it returns the number's name."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if is_map(field):
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if message.HasField(field.name):
                yield from numbers(value)
        elif field.type == FieldDescriptor.TYPE_DOUBLE:
            yield partial(_set, message, field)


def _set(message: Message, field: Any, value: float) -> str:
    if field.is_repeated:
        getattr(message, field.name)[0] = value
    else:
        setattr(message, field.name, value)
    return f"{message.DESCRIPTOR.name}.{field.name}"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", SENT_TO_SERVERS)
def test_what_is_not_a_number_is_refused_wherever_it_stands(name: str, bad: float) -> None:
    accepted = []
    for index in range(len(list(numbers(sent(name))))):
        message = sent(name)
        field = list(numbers(message))[index](bad)
        try:
            PAIRS[name][2](message)
        except InvalidInput:
            continue
        accepted.append(field)
    assert accepted == []


def test_an_unset_policy_governs_rounds_by_the_defaults() -> None:
    least = admin_pb2.RoundPolicy(minimum_devices=1, deadline_seconds=600, lease_seconds=60)
    assert admin_calls.policy_from(least) == RoundPolicy()


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ({"site": "a b"}, "value of label 'site': 'a b' is not an id"),
        ({"": "a"}, "label name '' is not an id"),
        ({"a=b": "c"}, "value of label 'a': 'b=c' is not an id"),
        ({f"l{i}": "v" for i in range(33)}, "33 labels; 32 are the most"),
    ],
)
def test_labels_out_of_their_limits_are_refused(labels: dict[str, str], complaint: str) -> None:
    profile = coordinator_pb2.DeviceProfile(samples=1, labels=labels)
    with pytest.raises(InvalidInput, match=f"DeviceProfile.labels.*{complaint}"):
        device_calls.profile_from(profile)
    policy = sent("policy")
    assert isinstance(policy, admin_pb2.RoundPolicy)
    policy.eligibility.labels.clear()
    policy.eligibility.labels.update(labels)
    with pytest.raises(InvalidInput, match=f"Eligibility.labels.*{complaint}"):
        admin_calls.policy_from(policy)


def test_the_number_that_is_refused_is_named() -> None:
    message = sent("update report")
    assert isinstance(message, coordinator_pb2.UpdateReport)
    message.loss = math.nan
    with pytest.raises(InvalidInput, match=r"UpdateReport\.loss is nan"):
        device_calls.update_report_from(message)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_the_evaluation_of_a_model_that_diverged_is_told(loss: float) -> None:
    message = common.evaluation_message(Evaluation(accuracy=0.1, loss=loss, samples=10))
    told = common.evaluation_from(message)
    assert (told.accuracy, told.samples) == (0.1, 10)
    assert told.loss == pytest.approx(loss, nan_ok=True)


def test_a_devices_traffic_is_capped_but_not_the_sum_over_a_fleet() -> None:
    most = Traffic(received_bytes=2**50, sent_bytes=2**50)
    report = replace(examples.UPDATE_REPORT, traffic=most)
    message = device_calls.update_report_message(report)
    assert device_calls.update_report_from(message).traffic == most
    assert common.traffic_from(common.traffic_message(most + most)) == most + most
    message.traffic.sent_bytes += 1
    with pytest.raises(InvalidInput, match="Traffic is above"):
        device_calls.update_report_from(message)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", -1),
        ("steps", 10**9 + 1),
        ("cpu_seconds", math.nan),
        ("cpu_seconds", math.inf),
        ("cpu_seconds", 1e30),
        ("peak_memory_bytes", 2**62),
        ("withheld_samples", -1),
        ("ssim_paired_max", math.nan),
        ("ssim_nearest_max", 1.5),
    ],
)
def test_a_cost_that_cannot_be_true_does_not_spoil_the_result(field: str, value: float) -> None:
    message = device_calls.update_report_message(examples.UPDATE_REPORT)
    setattr(message.device, field, value)
    expected = replace(examples.UPDATE_REPORT, device=None)
    assert device_calls.update_report_from(message) == expected


def test_optional_parts_stay_absent() -> None:
    silent = replace(examples.UPDATE_REPORT, device=None)
    message = device_calls.update_report_message(silent)
    assert device_calls.update_report_from(message) == silent
    without_pool = replace(examples.TRAIN, work=TrainWork(None))
    message = device_calls.assignment_message(without_pool)
    assert device_calls.assignment_from(message) == without_pool
    first = replace(examples.ROUND, evaluation=None, pool=None, staleness=None)
    assert admin_calls.round_from(admin_calls.round_message(first)) == first
    new = replace(examples.RUN, progress=None, last_round=None)
    assert admin_calls.run_from(admin_calls.run_message(new)) == new
    quiet = replace(examples.PROFILE, charging=None, unmetered=None, labels=())
    assert device_calls.profile_from(device_calls.profile_message(quiet)) == quiet
    idle = replace(examples.DEVICE, task_id=None)
    assert admin_calls.device_from(admin_calls.device_message(idle)) == idle
    listed = replace(examples.SNAPSHOT, shards=())
    assert store_calls.snapshot_from(store_calls.snapshot_message(listed)) == listed


@pytest.mark.parametrize("state", RunState)
def test_every_run_state_has_a_number(state: RunState) -> None:
    run = replace(examples.RUN, state=state)
    assert admin_calls.run_from(admin_calls.run_message(run)).state is state


def test_all_messages_of_the_contract_fit_under_these_tests() -> None:
    """A new message with content needs a pair above, or to be listed here with the reason."""
    tested: set[str] = set()

    def visit(message: Message) -> None:
        tested.add(message.DESCRIPTOR.name)
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE and not is_map(field):
                for part in value if field.is_repeated else [value]:
                    visit(part)

    for name in PAIRS:
        visit(sent(name))
    modules = (common_pb2, coordinator_pb2, admin_pb2, fleet_pb2, synthesis_store_pb2)
    declared = {name for module in modules for name in module.DESCRIPTOR.message_types_by_name}
    # Requests, responses and upload headers are envelopes that servicers and clients unpack.
    envelopes = {n for n in declared if n.endswith(("Request", "Response", "Header"))}
    assert declared - envelopes - tested == set()


@pytest.mark.parametrize("good", ["a", "0", "run-1", "A.b_c-9", "x" * 128])
def test_ids_within_the_rule_pass(good: str) -> None:
    assert require_id(good, "run_id") == good


@pytest.mark.parametrize(
    "bad", ["", ".", "-a", "_a", "a/b", "a\\b", "a b", "a\n", "é", "x" * 129, "a\x00"]
)
def test_ids_outside_the_rule_are_refused_by_name(bad: str) -> None:
    with pytest.raises(InvalidInput, match="run_id"):
        require_id(bad, "run_id")
