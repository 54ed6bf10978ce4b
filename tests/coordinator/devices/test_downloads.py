"""The coordinator sends a device only the model that the device's task names."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hfmds.domain.runs import RunState
from hfmds.domain.tasks import Assignment
from hfmds.errors import NotAllowed
from tests.coordinator.workbench import Workbench, echo, make_spec, nudge, workbench


async def fetch(bench: Workbench, device: str, task: Assignment, model_of: Assignment) -> bytes:
    chunks = bench.downloads.download(device, task.task_id, model_of.weights, 0)
    return b"".join([chunk async for chunk in chunks])


async def test_a_device_gets_the_model_of_its_task_only(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2), "one")
        first = await bench.check_in("a")
        assert len(await fetch(bench, "a", first, first)) == first.weights.size_bytes
        await bench.do("a", first, nudge(1.0))
        second = await bench.check_in("a")
        await fetch(bench, "a", second, second)
        await bench.create(make_spec(seed=1), "two")
        other = await bench.check_in("b")
        await fetch(bench, "b", other, other)

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


async def test_a_run_does_not_get_the_model_of_a_deleted_run_with_its_id(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec())
        old = await bench.check_in("a")
        await fetch(bench, "a", old, old)
        await bench.do("a", old, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        await asyncio.to_thread(bench.runs.delete, "run")
        await bench.create(make_spec(seed=1))
        new = await bench.check_in("a")
        assert new.run_id == old.run_id
        with pytest.raises(NotAllowed):
            await fetch(bench, "a", new, old)
