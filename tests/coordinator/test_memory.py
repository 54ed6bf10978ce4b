"""What the coordinator has in memory it gives to nobody who could not have it from storage."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator.devices.lru import Memory
from hfmds.domain.runs import RunState
from hfmds.domain.tasks import Assignment
from hfmds.errors import NotAllowed
from tests.coordinator.workbench import Workbench, echo, make_spec, nudge, workbench


def test_what_was_not_asked_for_longest_is_forgotten() -> None:
    memory = Memory[int](2)
    memory.put("a", 1)
    memory.put("b", 2)
    assert memory.get("a") == 1
    memory.put("c", 3)
    assert (memory.get("a"), memory.get("b"), memory.get("c")) == (1, None, 3)


async def fetch(bench: Workbench, device: str, task: Assignment, model_of: Assignment) -> None:
    async for _ in bench.dispatch.download(device, task.task_id, model_of.weights, 0):
        pass


async def remembered(bench: Workbench, device: str, task: Assignment) -> None:
    """Have a task's model in memory, as it is once it was asked for."""
    await fetch(bench, device, task, task)
    assert bench.dispatch._in_memory(device, task.task_id, task.weights, 0)


async def test_a_model_in_memory_is_for_those_whose_task_begins_at_it(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2), "one")
        first = await bench.check_in("a")
        await remembered(bench, "a", first)
        await bench.do("a", first, nudge(1.0))
        second = await bench.check_in("a")
        await remembered(bench, "a", second)
        await bench.create(make_spec(seed=1), "two")
        other = await bench.check_in("b")
        await remembered(bench, "b", other)

        assert len({first.weights, second.weights, other.weights}) == 3
        for device, task, model_of in (
            ("a", second, first),  # of an earlier round
            ("a", first, second),  # of a later one
            ("a", second, other),  # of another run
            ("b", other, second),
            ("b", second, second),  # by the task of another device
            ("a", other, other),
        ):
            with pytest.raises(NotAllowed):
                await fetch(bench, device, task, model_of)


async def test_a_run_does_not_get_what_a_deleted_one_of_its_id_had(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec())
        old = await bench.check_in("a")
        await remembered(bench, "a", old)
        await bench.do("a", old, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        await asyncio.to_thread(bench.runs.delete, "run")
        await bench.create(make_spec(seed=1))
        new = await bench.check_in("a")
        assert new.run_id == old.run_id
        with pytest.raises(NotAllowed):
            await fetch(bench, "a", new, old)
