"""Plans for devices without torch."""

from __future__ import annotations

import asyncio
import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.devices import plans
from coordinator.devices.plans import Plans
from coordinator.records.tables import Base
from coordinator.records.tasks import PhaseKey
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.runs import Phase, Progress
from hfmds.domain.tasks import Assignment, RetryLater
from hfmds.errors import InvalidInput, NotAllowed, Unavailable
from hfmds.plans.format import PlanSpec, plan_spec
from hfmds.storage.database import open_database
from hfmds.storage.locations import Folder
from tests.coordinator.workbench import MODEL, PROFILE, Workbench, make_spec, workbench
from tests.support.databases import database_of
from tests.support.waiting import eventually

WITHOUT_TORCH = replace(PROFILE, engine="onnx-cpu")
SPEC = plan_spec(make_spec().recipe)
PLAN = b"the plan of " + MODEL.architecture.encode()


class LibraryInMemory:
    """A planner that makes plans when the test permits it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may = threading.Event()
        self.may.set()
        self.plans_made: list[PlanSpec] = []
        self.error = error

    def plan(self, spec: PlanSpec) -> bytes:
        assert self.may.wait(20)
        error = self.error
        self.plans_made.append(spec)
        if error:
            raise error
        return b"the plan of " + spec.model.architecture.encode()

    def close(self) -> None:
        self.may.set()


async def asked(bench: Workbench, device_id: str = "a", wait_seconds: float = 10.0) -> Assignment:
    outcome = await bench.check_ins.check_in(device_id, WITHOUT_TORCH, wait_seconds, "")
    assert isinstance(outcome, Assignment), outcome
    return outcome


async def test_a_device_without_torch_gets_its_plan(tmp_path: Path) -> None:
    async with workbench(tmp_path, library=LibraryInMemory()) as bench:
        await bench.create(make_spec())
        task = await asked(bench)
        assert task.plan == digest_of(PLAN)
        chunks = bench.downloads.download("a", task.task_id, task.plan, 4)
        assert b"".join([chunk async for chunk in chunks]) == PLAN[4:]
        with pytest.raises(NotAllowed, match="does not refer"):
            await anext(bench.downloads.download("a", task.task_id, digest_of(b"other"), 0))


async def test_a_device_waits_for_its_plan_and_then_gets_its_task(tmp_path: Path) -> None:
    library = LibraryInMemory()
    library.may.clear()
    async with workbench(tmp_path, library=library) as bench:
        await bench.create(make_spec())
        outcome = await bench.check_ins.check_in("a", WITHOUT_TORCH, 0.2, "")
        assert isinstance(outcome, RetryLater)
        waiting = asyncio.create_task(asked(bench))
        # The run waits for the plan, not for devices.
        await bench.until(lambda run: run.progress == Progress(1, Phase.MAKING_PLAN, 0, 0))
        # No phase is open, so no deadline runs.
        assert bench.records.phases.find(PhaseKey("run", 1, "train")) is None
        library.may.set()
        assert (await waiting).plan == digest_of(PLAN)
        assert len(library.plans_made) == 1


async def test_a_device_that_joins_later_does_not_delay_others_by_its_plan(tmp_path: Path) -> None:
    library = LibraryInMemory()
    library.may.clear()
    async with workbench(tmp_path, library=library) as bench:
        await bench.create(make_spec(devices=2))
        waiting = await bench.arrive("b", "c")  # these have torch
        tasks = await asyncio.gather(*waiting)
        assert {task.plan for task in tasks} == {None}
        # "c" restarts without torch.
        later = asyncio.create_task(asked(bench, "c"))
        await asyncio.sleep(0.1)
        assert not later.done()
        library.may.set()
        task = await later
        assert (task.task_id, task.plan) == (tasks[1].task_id, digest_of(PLAN))


async def test_a_device_with_torch_gets_its_task_without_a_plan(tmp_path: Path) -> None:
    library = LibraryInMemory()
    async with workbench(tmp_path, library=library) as bench:
        await bench.create(make_spec())
        assert (await bench.check_in("a")).plan is None
        assert library.plans_made == []


async def test_a_plan_is_made_once_for_all_runs_and_devices_and_after_a_restart(
    tmp_path: Path,
) -> None:
    library = LibraryInMemory()
    async with workbench(tmp_path, library=library) as bench:
        await bench.create(make_spec(devices=2))
        tasks = await asyncio.gather(asked(bench, "a"), asked(bench, "b"))
        assert {task.plan for task in tasks} == {digest_of(PLAN)}
    async with workbench(tmp_path, library=library) as bench:
        assert (await asked(bench, "a")).plan == digest_of(PLAN)
    assert library.plans_made == [SPEC]


async def test_a_network_without_a_plan_is_not_tried_again(tmp_path: Path) -> None:
    library = LibraryInMemory(InvalidInput("it draws random numbers"))
    async with workbench(tmp_path, library=library) as bench:
        await bench.create(make_spec())
        assert (await asked(bench)).plan is None
        assert (await asked(bench)).plan is None
        assert library.plans_made == [SPEC]


def ready_plan(of: Plans, spec: PlanSpec) -> Digest:
    """Return the plan, and make it if necessary."""
    is_made = threading.Event()
    if not of.ready(spec, is_made.set):
        assert is_made.wait(20)
    plan = of.of(spec)
    assert plan is not None
    return plan


def test_least_recently_used_plans_are_dropped_and_made_again(tmp_path: Path) -> None:
    models = [PlanSpec(replace(MODEL, architecture=name)) for name in ("one", "two", "six")]
    engine = open_database(database_of(tmp_path))
    Base.metadata.create_all(engine)
    library, clock = LibraryInMemory(), itertools.count().__next__
    room = 2 * len(b"the plan of one")
    ours, other = (
        Plans(engine, Folder(tmp_path / "blobs"), library, room, clock) for _ in range(2)
    )
    first, second = (ready_plan(ours, model) for model in models[:2])
    assert ready_plan(other, models[1]) == second
    assert ready_plan(ours, models[0]) == first
    third = ready_plan(ours, models[2])
    assert set(ours.blobs.digests()) == {first, third}
    assert library.plans_made == models
    # Another coordinator notices the loss when a device asks, and the device asks again.
    assert other.of(models[1]) == second
    with pytest.raises(Unavailable, match=second.sha256[:12]):
        other.contains(second)
    assert ready_plan(other, models[1]) == second
    assert other.contains(second)
    assert library.plans_made == [*models, models[1]]


def test_a_dropped_plan_that_cannot_be_made_again_is_unavailable(tmp_path: Path) -> None:
    engine = open_database(database_of(tmp_path))
    Base.metadata.create_all(engine)
    library = LibraryInMemory()
    ours = Plans(engine, Folder(tmp_path / "blobs"), library, 1 << 20)
    plan, is_made = ready_plan(ours, SPEC), threading.Event()
    ours.blobs.delete(plan)
    library.error = InvalidInput("it draws random numbers")
    library.may.clear()
    with pytest.raises(Unavailable, match=plan.sha256[:12]):
        ours.contains(plan)
    assert not ours.ready(SPEC, is_made.set)
    library.may.set()
    assert is_made.wait(20)
    assert not ours.contains(plan)
    assert library.plans_made == [SPEC, SPEC]


def test_equal_plans_are_stored_once(tmp_path: Path) -> None:
    models = [PlanSpec(replace(MODEL, height=height)) for height in (20, 21)]
    engine = open_database(database_of(tmp_path))
    Base.metadata.create_all(engine)
    ours, other = (
        Plans(engine, Folder(tmp_path / "blobs"), library, len(PLAN))
        for library in (LibraryInMemory(), LibraryInMemory(InvalidInput("made before")))
    )
    for plans_of in (ours, other):
        assert {ready_plan(plans_of, model) for model in models} == {digest_of(PLAN)}
    newer = ready_plan(ours, PlanSpec(replace(MODEL, architecture="newer")))
    assert list(ours.blobs.digests()) == [newer]


async def test_a_plan_that_could_not_be_stored_is_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = LibraryInMemory(Unavailable("the disk is full"))
    async with workbench(tmp_path, library=library) as bench:
        await bench.create(make_spec())
        outcome = await bench.check_ins.check_in("a", WITHOUT_TORCH, 0.5, "")
        assert isinstance(outcome, RetryLater)
        await eventually(lambda: library.plans_made)
        library.error = None
        outcome = await bench.check_ins.check_in("a", WITHOUT_TORCH, 0.2, "")
        assert isinstance(outcome, RetryLater)
        assert library.plans_made == [SPEC]
        monkeypatch.setattr(plans, "_RETRY_SECONDS", 0.0)
        assert (await asked(bench)).plan == digest_of(PLAN)
