"""A drained coordinator starts no work and no phase, and loses no work in progress."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from coordinator.monitoring.live_counts import LiveCounts
from hfmds.domain.administration.operations import Drain
from hfmds.domain.runs import Phase, RunState
from hfmds.domain.tasks import Assignment, RetryLater
from tests.coordinator.workbench import PROFILE, Workbench, echo, make_spec, workbench
from tests.support.waiting import eventually


async def drain(bench: Workbench, on: bool, by: str = "olga") -> Drain:
    return await asyncio.to_thread(bench.app.admin.drain.set, on, by)


async def test_a_drained_coordinator_assigns_no_task_and_accepts_open_results(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(devices=2))
        first, second = await bench.arrive("a", "b")
        a = await first
        await second
        await bench.leases.leave("b")
        await drain(bench, True)
        # A killed device continues with its task.
        assert (await bench.check_in("a")).task_id == a.task_id
        assert await bench.leases.renew("a", a.task_id) == 60.0
        assert await bench.do("a", a, echo) is False
        assert await bench.do("b", await second, echo) is False
        await bench.until(lambda run: run.state is RunState.COMPLETED)


async def test_devices_are_told_when_to_come_back_and_get_work_when_it_ends(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        waiting = asyncio.create_task(bench.check_ins.check_in("a", PROFILE, 30.0, ""))
        await eventually(lambda: bench.check_ins.waiting)
        await drain(bench, True)
        sent_away = await waiting
        assert isinstance(sent_away, RetryLater)
        assert sent_away.after_seconds > 0
        assert "drained" in sent_away.reason
        await bench.create(make_spec())
        run = await bench.until(lambda run: run.progress is not None)
        assert run.progress is not None
        assert run.progress.phase is Phase.DRAINED
        assert isinstance(await bench.check_ins.check_in("a", PROFILE, 5.0, ""), RetryLater)
        assert bench.overview.funnels("run", 0) == ()  # without a phase there is no task
        await drain(bench, False)
        assert isinstance(await bench.check_in("a"), Assignment)


async def test_a_task_that_was_assigned_waits_for_the_end_of_the_drain(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec())
        await bench.arrive_and_leave("a")
        await bench.until(lambda run: bool(run.progress and run.progress.expected == 1))
        await eventually(lambda: bench.overview.funnels("run", 1))
        await drain(bench, True)
        assert isinstance(await bench.check_ins.check_in("a", PROFILE, 0.0, ""), RetryLater)
        await drain(bench, False)
        await bench.play("a", 1, echo)


async def test_a_drain_survives_a_restart_and_is_in_the_logs_of_runs_once(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(devices=9), "ended")
        bench.runs.cancel("ended")
        await bench.create(make_spec(devices=9))
        assert bench.overview.status().drain == Drain(on=False)
        first = await drain(bench, True)
        assert (first.on, first.by) == (True, "olga")
        assert await drain(bench, True, "otto") == first
    async with workbench(tmp_path) as bench:
        status = bench.overview.status()
        assert status.drain == first
        assert status.runs == {"running": 1, "cancelled": 1}
        assert bench.overview.counts().drained
        assert not (await drain(bench, False, "otto")).on
        assert not bench.overview.counts().drained
        reasons = [
            (event.kind, json.loads(event.details)["by"])
            for event in bench.overview.events("run")[1]
            if event.kind.startswith("drain-")
        ]
        assert reasons == [("drain-on", "olga"), ("drain-off", "otto")]
        ended = {event.kind for event in bench.overview.events("ended")[1]}
        assert not ended & {"drain-on", "drain-off"}


async def test_the_metrics_show_the_drain(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        metrics = bench.registry
        live = LiveCounts(bench.app.counts, metrics)
        await bench.create(make_spec())
        await bench.check_in("a")
        live.refresh()
        assert metrics.get_sample_value("hfmds_coordinator_drained") == 0
        await drain(bench, True)
        live.refresh()
        assert metrics.get_sample_value("hfmds_coordinator_drained") == 1
        pending = "hfmds_coordinator_tasks_pending"
        assert metrics.get_sample_value(pending, {"stage": "taken"}) == 1
        assert metrics.get_sample_value(pending, {"stage": "uploaded"}) == 0
