"""Drain, status, funnels, stages and causes over the wire and back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hfmds.domain.administration.operations import Drain, Funnel, Status
from hfmds.domain.tasks import FailureCause, TaskStage
from hfmds.errors import InvalidInput
from hfmds.event_chain import make_event, origin
from hfmds.v1 import common_pb2, coordinator_pb2
from hfmds.wire.conversions.device_calls import failure_cause_from, stage_from, stage_name
from hfmds.wire.conversions.events import event_from, event_message
from hfmds.wire.conversions.operations import (
    drain_from,
    drain_message,
    funnel_from,
    funnel_message,
    status_from,
    status_message,
)

SINCE = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize("drain", [Drain(on=False), Drain(True, SINCE, "olga")])
def test_drain_and_status(drain: Drain) -> None:
    assert drain_from(drain_message(drain)) == drain
    status = Status(drain, {"running": 1}, {}, {"taken": 3})
    assert status_from(status_message(status)) == status


def test_a_funnel_with_every_field() -> None:
    funnel = Funnel(
        "train", *range(10, 0, -1), late={"gone": 2}, failed={"diverged": 1}, refused={"x": 3}
    )
    assert funnel_from(funnel_message(funnel)) == funnel


def test_an_event_comes_back_with_its_hash() -> None:
    event = make_event("run.1", 1, 1_700_000_000_123_456, "run-created", "{}", origin("run.1"))
    assert event_from("run.1", event_message(event)) == event
    assert event.at == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)


def test_the_hash_is_the_one_the_contract_describes() -> None:
    """A log must be checkable by anybody, for ever: these values never change."""
    event = make_event("run.1", 1, 1_000_001, "run-created", '{"by":"olga"}', origin("run.1"))
    assert origin("run.1") == "899c59563ee9e12cbca5041f20ddd7c63c308540671db5257c0437ffd4c4c0ea"
    assert event.hash == "d3326d9944284de8eafd9d41b2bf1f54bb5d9ebb83bec29c3a8c2526eca4957e"


def test_stages_have_the_numbers_of_the_contract() -> None:
    for stage in list(TaskStage)[1:]:
        name = stage_name(stage)
        assert name is not None
        assert common_pb2.TaskStage.Value(name) == stage
        assert stage_from(int(stage)) is stage
    assert stage_name(None) is None
    assert stage_from(0) is None
    with pytest.raises(InvalidInput, match="TaskStage 99"):
        stage_from(99)


def test_causes_are_those_of_the_contract_and_others_are_unexpected() -> None:
    numbers = coordinator_pb2.FailureCause
    for cause in FailureCause:
        assert failure_cause_from(numbers.Value(f"FAILURE_CAUSE_{cause.name}")) is cause
    assert len(numbers.keys()) == len(FailureCause) + 1
    assert failure_cause_from(0) is FailureCause.UNEXPECTED
    assert failure_cause_from(99) is FailureCause.UNEXPECTED
