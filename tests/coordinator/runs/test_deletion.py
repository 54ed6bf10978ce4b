"""Deletion of runs, including deletions interrupted by a kill."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from coordinator.records.tables import PhaseRow, RoundRow, RunRow, TaskRow
from coordinator.replicas.leadership import Deposed
from coordinator.runs.content_deletion import Deletion
from coordinator.runs.run_control import DriverRecords
from hfmds.domain.runs import ModelVersion, RunState
from hfmds.errors import InvalidInput, NotFound, Unavailable, WrongState
from hfmds.event_chain import flaw
from hfmds.storage.database import fenced, opened_database, read_session
from hfmds.wire.tensors import encode_weights
from tests.coordinator.workbench import Workbench, echo, make_spec, model_after, workbench
from tests.support.databases import database_of
from tests.support.waiting import eventually


async def complete(bench: Workbench, run_id: str = "run") -> None:
    await bench.create(make_spec(), run_id)
    await bench.play("a", 1, echo)
    await bench.until(lambda run: run.state is RunState.COMPLETED, run_id)
    # A driver that ends after the mark would delete the run itself.
    await thread_ends(f"run-{run_id}")


async def thread_ends(name: str) -> None:
    await eventually(lambda: all(thread.name != name for thread in threading.enumerate()))


def rows_of(folder: Path, run_id: str) -> int:
    """Count the rows of a run, without its log."""
    with opened_database(database_of(folder)) as engine, read_session(engine) as session:
        tables = (RunRow, RoundRow, PhaseRow, TaskRow)
        rows = [session.scalars(select(t).where(t.run_id == run_id)).all() for t in tables]
        return sum(map(len, rows))


def kinds(bench: Workbench, run: str = "run") -> list[str]:
    return [event.kind for event in bench.overview.events(run)[1]]


async def test_a_deleted_run_leaves_its_log_and_nothing_else(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await complete(bench)
        await complete(bench, "other")
        assert (tmp_path / "blobs" / "run").exists()
        await asyncio.to_thread(bench.runs.delete, "run", "olga")
        with pytest.raises(NotFound, match="no run 'run'"):
            bench.runs.get("run")
        assert not (tmp_path / "blobs" / "run").exists()
        assert not (tmp_path / "uploads" / "run").exists()
        assert rows_of(tmp_path, "run") == 0
        assert kinds(bench)[-2:] == ["run-deleting", "run-deleted"]
        run_uid, events = bench.overview.events("run")
        assert flaw(events, run_uid) == ""
        assert '"by":"olga"' in events[-2].details
        # The other run keeps its content.
        assert rows_of(tmp_path, "other") == 4
        assert len(await model_after(bench, 1, "other")) > 1000
        # A repeated deletion changes nothing.
        await asyncio.to_thread(bench.runs.delete, "run", "otto")
        assert kinds(bench)[-1] == "run-deleted"
        assert len(bench.overview.events("run")[1]) == len(events)


async def test_only_a_run_that_has_ended_can_be_deleted(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec())
        with pytest.raises(WrongState, match="'run' is running"):
            bench.runs.delete("run")
        bench.runs.pause("run")
        with pytest.raises(WrongState, match="'run' is paused"):
            bench.runs.delete("run")
        with pytest.raises(NotFound, match="'none'"):
            bench.runs.delete("none")
        bench.runs.cancel("run")
        await asyncio.to_thread(bench.runs.delete, "run")
        assert bench.runs.list() == []


async def test_the_id_of_a_deleted_run_names_the_next_one_and_both_logs_can_be_read(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        await complete(bench)
        first, before = bench.overview.events("run")
        await asyncio.to_thread(bench.runs.delete, "run")
        await bench.create(make_spec(seed=1))
        second, events = bench.overview.events("run")
        assert first != second
        assert events[0].kind == "run-created"
        again, old = bench.overview.events(first)
        assert again == first
        assert list(old[: len(before)]) == list(before)
        assert old[-1].kind == "run-deleted"


async def test_caches_of_a_deleted_run_do_not_affect_the_next_with_its_id(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        await complete(bench)
        await asyncio.to_thread(bench.runs.delete, "run")
        spec = make_spec(seed=1)
        spec = replace(spec, recipe=replace(spec.recipe, compression="fp16"))
        await bench.create(spec)
        assignment = await bench.check_in("a")
        assert assignment.recipe == spec.recipe
        update = encode_weights(bench.weights(assignment))
        with pytest.raises(InvalidInput, match="it must be F16"):
            await bench.submit("a", assignment, update)


@pytest.mark.parametrize("content_was_removed", [False, True])
async def test_an_interrupted_deletion_completes_at_the_next_start(
    tmp_path: Path, content_was_removed: bool
) -> None:
    async with workbench(tmp_path) as bench:
        await complete(bench)
        # A leader would delete the run as soon as any notice names it.
        bench.drivers.follow()
        bench.records.runs.begin_deletion("run", 1.0, "olga")
        if content_was_removed:
            bench.app.contents.remove("run")
        assert bench.runs.get("run").state is RunState.DELETING
        with pytest.raises(WrongState, match="being deleted"):
            await bench.create(make_spec())
    async with workbench(tmp_path) as bench:
        await eventually(lambda: not bench.runs.list())
        assert not (tmp_path / "blobs" / "run").exists()
        assert kinds(bench)[-2:] == ["run-deleting", "run-deleted"]


@pytest.mark.parametrize("times", [0, 1, 4])
async def test_a_former_leader_deletes_nothing(tmp_path: Path, times: int) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(refresh_every=1))
        await bench.play("a", 2, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        await thread_ends("run-run")
        bench.records.runs.begin_deletion("run", 1.0, "olga")
        blobs = bench.app.contents.of("run").blobs
        for number in range(9):
            blobs.put_bytes(bytes([number]))
        before, asked = len(list(blobs.digests())), 0

        def fence(_: Connection) -> None:
            nonlocal asked
            asked += 1
            if asked > times:
                raise Deposed

        with opened_database(database_of(tmp_path)) as engine:
            deposed = DriverRecords.on(fenced(engine, fence))
            loop = asyncio.get_running_loop()
            Deletion(bench.app.contents, bench.store, loop, time.time).begin(deposed, "run")
            await thread_ends("delete-run")
        # Two kills happen before the call to the store, the third before the first blob.
        assert len(bench.store.released) == (times >= 2)
        assert before - len(list(blobs.digests())) == max(0, times - 2)
        assert bench.runs.get("run").state is RunState.DELETING


async def test_a_new_run_with_the_id_of_a_deleted_one_keeps_its_content(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await complete(bench)
        old = bench.records.runs.get("run").run_uid
        await asyncio.to_thread(bench.runs.delete, "run")
        await complete(bench)
        bench.records.runs.begin_deletion("run", 1.0, "olga")
        with pytest.raises(NotFound, match=old):
            bench.records.runs.require_deleting(old)
        bench.records.runs.require_deleting(bench.records.runs.get("run").run_uid)


async def test_a_run_that_starts_from_a_model_never_gets_fresh_weights(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await complete(bench)
        spec = replace(make_spec(), start_from=ModelVersion("run", 1))
        # Another run with this id exists at the time of the copy.
        with pytest.raises(Unavailable, match="'next'"):
            bench.records.runs.create("next", spec, 1.0)
        await bench.create(spec, "next")


async def test_a_run_is_deleted_after_the_store_released_its_snapshots(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(refresh_every=1))
        await bench.play("a", 2, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        await complete(bench, "no-pool")
        bench.store.away = True
        # Deleting a run without pools needs no store.
        await asyncio.to_thread(bench.runs.delete, "no-pool")
        calls = bench.store.calls
        deleting = asyncio.create_task(asyncio.to_thread(bench.runs.delete, "run"))
        await eventually(lambda: bench.store.calls > calls)
        assert bench.runs.get("run").state is RunState.DELETING
        bench.store.away = False
        await deleting
        assert bench.store.released == ["run"]
