"""Stages and failures that a device reports about a task."""

from __future__ import annotations

import asyncio

import pytest

from hfmds.domain.tasks import FailureCause, TaskStage, UnreadableTask
from hfmds.errors import (
    ConfigurationError,
    CorruptData,
    Diverged,
    InvalidInput,
    NotAllowed,
    TooLate,
    WrongState,
)
from tests.edge_client.fakes import STORE, Device, unavailable


async def test_a_long_stage_is_reported(device: Device) -> None:
    device.tell_stage_after_seconds = 0.0
    stages = device.coordinator.stages
    device.engine.enough = lambda: TaskStage.DOWNLOADED in stages
    await device.work(device.train_task())
    assert stages[0] is TaskStage.DOWNLOADED
    assert "t1" in device.coordinator.updates


async def test_a_waiting_result_is_reported(device: Device) -> None:
    device.tell_stage_after_seconds = 0.0
    device.store.errors["put_batch"] = [unavailable(STORE) for _ in range(20)]
    await device.work(device.synthesise_task())
    assert device.coordinator.stages[-1] is TaskStage.COMPUTED
    assert "s1" in device.coordinator.syntheses


async def test_quick_tasks_report_no_stages(device: Device) -> None:
    await device.work(device.train_task(), device.synthesise_task())
    assert device.coordinator.stages == []


async def test_a_device_stops_when_its_report_shows_the_task_ended(device: Device) -> None:
    device.tell_stage_after_seconds = 0.0
    device.coordinator.errors["renew_lease"] = [TooLate("round 1 is closed", "goal-reached")]
    device.engine.enough = lambda: False  # forever

    async def never(seconds: float) -> None:  # prevents further renewals
        await asyncio.sleep(3600)

    device.sleep = never
    await device.work(device.train_task())
    assert device.engine.abandoned
    assert not device.coordinator.failures


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (InvalidInput("images are too small"), FailureCause.UNSUITABLE),
        (ConfigurationError("no such engine"), FailureCause.UNSUITABLE),
        (Diverged("a loss is nan"), FailureCause.DIVERGED),
        (CorruptData("altered"), FailureCause.TRANSFER),
        (NotAllowed("the pool is halted"), FailureCause.REFUSED),
        (WrongState("what?"), FailureCause.UNEXPECTED),
        (ZeroDivisionError(), FailureCause.UNEXPECTED),
    ],
)
async def test_a_failure_has_a_cause(device: Device, error: Exception, cause: FailureCause) -> None:
    device.engine.error = error
    await device.work(device.train_task())
    assert device.coordinator.causes == {"t1": cause}


async def test_a_task_that_cannot_be_read_has_a_cause(device: Device) -> None:
    await device.work(UnreadableTask("t1", "run", "a method of tomorrow"))
    assert device.coordinator.causes == {"t1": FailureCause.UNREADABLE}
