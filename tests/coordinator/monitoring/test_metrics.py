"""Metrics of the coordinator, and their bounds against hostile input."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import event

from coordinator.monitoring.device_costs import FleetMetrics
from coordinator.monitoring.funnel import FunnelMetrics
from coordinator.monitoring.live_counts import Counts, LiveCounts
from coordinator.monitoring.metrics import Metrics
from coordinator.monitoring.round_timing import RoundTimer
from coordinator.records.runs import RunRecord
from hfmds.domain.devices import DeviceState
from hfmds.domain.digest import digest_of
from hfmds.domain.learning import Evaluation
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.round_policy import Asynchronous
from hfmds.domain.runs import Phase, Round, RunState
from hfmds.domain.tasks import DeviceReport, FailureCause, LateReason, TaskStage
from hfmds.errors import NotFound, Unavailable
from hfmds.storage.database import opened_database, read_session
from hfmds.wire.tensors import encode_weights
from tests.coordinator.workbench import PROFILE, echo, make_spec, workbench
from tests.support.databases import database_of
from tests.support.waiting import eventually
from tests.wire import examples

RUN = RunRecord("run", "run.1", make_spec(), RunState.RUNNING, "", 0.0, 0, None)
FUNNEL = ("assigned", "taken", "downloaded", "computed", "uploaded", "accepted")


class Read:
    """Reads a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"hfmds_coordinator_{name}", labels)

    async def until_left(self, run_id: str) -> None:
        """Wait until the driver of the run has ended, which completes all counts."""
        await eventually(lambda: not self("run_progress_timestamp_seconds", run=run_id))

    def funnel(self, kind: str) -> list[float | None]:
        return [self("funnel_tasks_total", kind=kind, stage=stage) for stage in FUNNEL]


# --- the funnel -----------------------------------------------------------------------------------


def test_a_task_counts_once_in_every_stage_it_has_reached() -> None:
    read = Read(CollectorRegistry())
    funnel = FunnelMetrics(read.registry)
    assert read.funnel("train") == [0] * 6
    funnel.assigned("train", 3)
    for before in (TaskStage.ASSIGNED, TaskStage.TAKEN):  # a killed device asks again
        funnel.reached("train", before, TaskStage.TAKEN)
    funnel.reached("train", TaskStage.ASSIGNED, TaskStage.TAKEN)
    funnel.reached("train", TaskStage.TAKEN, TaskStage.COMPUTED)
    funnel.reached("train", TaskStage.COMPUTED, TaskStage.DOWNLOADED)  # reported late
    assert read.funnel("train") == [3, 2, 1, 1, 0, 0]
    funnel.accepted("train", TaskStage.COMPUTED)
    funnel.accepted("train", TaskStage.ASSIGNED)
    funnel.failed("train", FailureCause.DIVERGED)
    assert read.funnel("train") == [3, 3, 2, 2, 2, 2]
    assert read.funnel("evaluate") == [0] * 6
    assert read("tasks_total", kind="train", outcome="accepted") == 2
    assert read("tasks_total", kind="train", outcome="failed") == 1
    assert read("tasks_failed_total", kind="train", cause="diverged") == 1
    assert read("tasks_failed_total", kind="train", cause="refused") == 0


def test_dropped_tasks_count_by_reason() -> None:
    read = Read(CollectorRegistry())
    funnel = FunnelMetrics(read.registry)
    funnel.dropped("train", [LateReason.GONE, LateReason.GONE, LateReason.CANCELLED])
    assert read("tasks_dropped_total", kind="train", reason="gone") == 2
    assert read("tasks_dropped_total", kind="train", reason="deadline") == 0
    assert read("tasks_total", kind="train", outcome="dropped") == 2


async def test_a_round_is_counted_from_its_opening_to_its_end(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        read = Read(bench.registry)
        live = LiveCounts(bench.app.counts, bench.registry)
        await bench.create(make_spec(devices=2, refresh_every=1))
        await asyncio.gather(bench.play("a", 1, echo), bench.play("b", 1, echo))
        live.refresh()
        assert read("rounds", state="completed") == 0
        assert read("run_running", run="run") == 1
        assert (read("run_progress_timestamp_seconds", run="run") or 0) > 0
        await asyncio.gather(bench.play("a", 1, echo), bench.play("b", 1, echo))
        await read.until_left("run")
        live.refresh()
        assert read.funnel("synthesise") == read.funnel("train") == [2] * 6
        for kind in ("synthesise", "train"):
            assert read("phases_closed_total", kind=kind, reason="goal-reached") == 1
            assert read("tasks_total", kind=kind, outcome="dropped") == 0
        for phase in ("synthesising", "sealing", "training", "aggregating", "evaluating"):
            assert read("phase_duration_seconds_count", phase=phase) == 1, phase
        assert read("phase_duration_seconds_count", phase="drained") == 0
        assert read("round_duration_seconds_count") == 1
        assert read("rounds", state="completed") == 1
        assert read("run_running", run="run") is None


async def test_lost_devices_are_counted_by_reason(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        read = Read(bench.registry)
        waiting = await bench.arrive("a", "b", "c")
        spec = make_spec(devices=1)
        spec = replace(spec, policy=replace(spec.policy, minimum_devices=1))
        await bench.create(spec)
        a, b, c = await asyncio.gather(*waiting)
        await bench.leases.report_failure("c", c.task_id, "broken", FailureCause.TRANSFER)
        await bench.leases.leave("b")
        await bench.do("a", a, echo)
        await read.until_left("run")
        assert read.funnel("train") == [3, 3, 1, 1, 1, 1]
        assert read("tasks_failed_total", kind="train", cause="transfer") == 1
        assert read("tasks_dropped_total", kind="train", reason="gone") == 1
        assert read("phases_closed_total", kind="train", reason="gone") == 1
        assert b.task_id != a.task_id


async def test_the_age_of_updates_is_counted_in_asynchronous_rounds(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        read = Read(bench.registry)
        mode = Asynchronous(buffer_size=1, max_staleness=1)
        waiting = await bench.arrive("slow")
        await bench.create(make_spec(rounds=3, asynchronous=mode))
        (slow,) = await asyncio.gather(*waiting)
        await bench.play("fast", 1, echo)
        await bench.do("slow", slow, echo)  # it began in round 1 and counts in round 2
        await bench.until(lambda run: run.completed_rounds == 2)
        await bench.play("new", 1, echo)  # "fast" may still have a task of round 2
        await read.until_left("run")
        assert read("update_staleness_rounds_bucket", le="0.0") == 2
        assert read("update_staleness_rounds_bucket", le="1.0") == 3


# --- rounds ---------------------------------------------------------------------------------------


def test_phases_are_timed_one_after_the_other() -> None:
    read = Read(CollectorRegistry())
    now = [0.0]
    watch = RoundTimer(RUN, Metrics(read.registry), lambda: now[0])
    watch.begin(1)
    for seconds, phase in ((1.0, Phase.TRAINING), (2.0, Phase.TRAINING), (4.0, Phase.AGGREGATING)):
        watch.enter(phase)
        now[0] += seconds
    watch.end()
    watch.end()
    assert read("phase_duration_seconds_sum", phase="training") == 3
    assert read("phase_duration_seconds_sum", phase="aggregating") == 4
    assert read("phase_duration_seconds_count", phase="aggregating") == 1


def test_the_best_accuracy_stays() -> None:
    read = Read(CollectorRegistry())
    metrics = Metrics(read.registry)

    def after(number: int, accuracy: float) -> Round:
        return replace(examples.ROUND, number=number, evaluation=Evaluation(accuracy, 1.0, 10))

    metrics.round_completed("run", after(1, 0.75))
    metrics.round_completed("run", after(2, 0.5))
    assert read("accuracy_ratio", run="run") == 0.5
    assert read("best_accuracy_ratio", run="run") == 0.75
    assert examples.ROUND.device_evaluation is not None
    assert read("device_loss", run="run") == examples.ROUND.device_evaluation.loss


def test_the_limits_of_a_run_are_shown_with_the_leakage_of_its_pool() -> None:
    read = Read(CollectorRegistry())
    metrics = Metrics(read.registry)
    metrics.show_limits("run", PoolPolicy(psnr_paired_max_db=20.0, halt_psnr_nearest_p99_db=15.0))
    metrics.show_limits("without", PoolPolicy())
    assert {
        (sample.labels["run"], sample.labels["real"], sample.labels["statistic"]): sample.value
        for family in read.registry.collect()
        for sample in family.samples
        if sample.name == "hfmds_coordinator_pool_psnr_limit_db"
    } == {("run", "paired", "max"): 20.0, ("run", "nearest", "p99"): 15.0}
    metrics.run_left("run", to_another=True)
    assert read("pool_psnr_limit_db", run="run", real="paired", statistic="max") is None


async def test_a_former_leader_shows_no_runs(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        read = Read(bench.registry)
        await bench.create(make_spec(rounds=2))
        await bench.play("a", 1, echo)
        await bench.check_in("a")  # of the second round
        assert read("round_number", run="run") == 1
        bench.drivers.follow()
        await read.until_left("run")
        assert b'run="run"' not in generate_latest(bench.registry)


# --- what devices report --------------------------------------------------------------------------


def test_reports_are_summed_over_the_fleet() -> None:
    read = Read(CollectorRegistry())
    fleet = FleetMetrics(read.registry)
    fleet.count(examples.UPDATE_REPORT)
    fleet.count(examples.SYNTHESIS_REPORT)
    fleet.count(examples.EVALUATION_REPORT)
    fleet.count(replace(examples.UPDATE_REPORT, device=None))  # an absent report
    assert read("fleet_reports_total", kind="train") == 1
    assert read("fleet_compute_seconds_sum", kind="train") == 3.5
    assert read("fleet_step_seconds_sum", kind="train") == 3.5 / 120
    assert read("fleet_cpu_seconds_total", kind="synthesise") == 6.5
    assert read("fleet_peak_memory_bytes_count") == 3
    assert read("fleet_withheld_samples_total") == 3
    assert read("fleet_batch_psnr_db_sum", real="paired") == examples.LEAKAGE.paired_max
    assert read("fleet_batch_ssim_ratio_bucket", real="nearest", le="0.4") == 0
    assert read("fleet_batch_ssim_ratio_bucket", real="nearest", le="0.5") == 1


@pytest.mark.parametrize("absurd", [1e308, -1e308])
def test_absurd_numbers_are_clipped_to_their_range(absurd: float) -> None:
    read = Read(CollectorRegistry())
    fleet = FleetMetrics(read.registry)
    leakage = replace(examples.LEAKAGE, paired_max=absurd, nearest_max=absurd)
    for _ in range(3):
        fleet.count(replace(examples.SYNTHESIS_REPORT, synthesis_seconds=absurd, leakage=leakage))
        fleet.count(
            replace(
                examples.UPDATE_REPORT,
                training_seconds=absurd,
                device=DeviceReport(steps=0, cpu_seconds=0.0, peak_memory_bytes=0),
            )
        )
    assert read("fleet_step_seconds_count", kind="train") == 0
    assert read("fleet_peak_memory_bytes_count") == 3
    for family in read.registry.collect():
        for sample in family.samples:
            assert math.isfinite(sample.value), sample
            assert abs(sample.value) <= 3e10, sample


async def stream(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_a_result_submitted_twice_counts_once(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2))
        task = await bench.check_in("a")
        data = encode_weights(bench.weights(task))
        report = replace(examples.UPDATE_REPORT, update=digest_of(data))

        async def submit() -> bool:
            return await bench.uploads.submit("a", task.task_id, report, 0, stream(data))

        assert not await submit()
        assert await submit()
        read = Read(bench.registry)
        assert read("fleet_reports_total", kind="train") == 1
        assert read("tasks_total", kind="train", outcome="accepted") == 1


# --- scrapes --------------------------------------------------------------------------------------


def test_a_scrape_omits_counts_while_the_database_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    read = Read(CollectorRegistry())
    Metrics(read.registry)
    away = False

    def read_counts() -> Counts:
        if away:
            raise Unavailable("the database is away")
        return Counts(devices={DeviceState.AWAY: 3})

    live = LiveCounts(read_counts, read.registry)
    live.refresh()
    away = True
    for failures in (1, 2):
        live.refresh()
        text = generate_latest(read.registry).decode()
        assert "hfmds_coordinator_devices{" not in text
        assert "hfmds_coordinator_round_duration_seconds_count 0.0" in text
        assert read("scrape_failures_total", part="counts") == failures
    away = False
    live.refresh()
    assert read("devices", state="away") == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_scrape_does_not_wait_for_a_database_that_hangs() -> None:
    read, seconds = Read(CollectorRegistry()), 0.0
    hanging, answer = threading.Event(), threading.Event()

    def read_counts() -> Counts:
        if seconds:
            hanging.set()
            assert answer.wait(60)
        return Counts(devices={DeviceState.AWAY: 3})

    live = LiveCounts(read_counts, read.registry, lambda: seconds)
    live.refresh()
    seconds = 10.0
    refresh = asyncio.create_task(asyncio.to_thread(live.refresh))
    await asyncio.to_thread(hanging.wait)
    assert read("devices", state="away") == 3
    seconds = 20.0
    assert read("devices", state="away") is None
    answer.set()
    await refresh
    assert read("devices", state="away") == 3


async def test_the_counts_are_refreshed_in_the_background() -> None:
    read, counted = Read(CollectorRegistry()), iter(range(1, 1000))
    live = LiveCounts(lambda: Counts(devices={DeviceState.AWAY: next(counted)}), read.registry)
    async with live.refreshing():
        assert read("devices", state="away") == 1
        await eventually(lambda: read("devices", state="away") == 2)


async def test_a_scrape_reads_no_table_that_grows_with_history(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        app, asked = bench.app, []
        live = LiveCounts(app.counts, bench.registry)
        await bench.create(make_spec(rounds=2, devices=1))
        await bench.play("a", 1, echo)
        with opened_database(database_of(tmp_path)) as engine, read_session(engine) as session:

            @event.listens_for(app.engine, "before_cursor_execute")
            def _note(_: object, __: object, statement: str, values: Any, *___: object) -> None:
                asked.append((statement, values))

            live.refresh()
            selects = [statement for statement in asked if statement[0].startswith("SELECT")]
            assert len(selects) > 5
            for statement, values in selects:
                plan = session.connection().exec_driver_sql(
                    f"EXPLAIN QUERY PLAN {statement}", values
                )
                steps = [step.detail for step in plan]
                assert not {"SCAN tasks", "SCAN rounds", "SCAN events"} & set(steps), statement
        await bench.play("a", 1, echo)


# --- bounds ---------------------------------------------------------------------------------------


async def test_hostile_names_make_no_series(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        live = LiveCounts(bench.app.counts, bench.registry)
        live.refresh()
        before = generate_latest(bench.registry)
        hostile = replace(PROFILE, engine="evil-engine", software_version="evil-version")
        for number in range(8):
            device = f"evil-{number}"
            await bench.check_ins.check_in(device, hostile, 0.0, "")
            with pytest.raises(NotFound):
                await bench.check_ins.check_in(device, hostile, 0.0, f"evil-run-{number}")
            with pytest.raises(NotFound):
                await bench.leases.renew(device, f"evil-task-{number}")
            with pytest.raises(NotFound):
                await bench.leases.report_failure(device, f"evil-task-{number}", "evil")
            with pytest.raises(NotFound):
                await bench.uploads.query(device, "evil", digest_of(device.encode()))
        live.refresh()
        after = generate_latest(bench.registry)
        assert b"evil" not in after
        assert after.count(b"\n") == before.count(b"\n")


def test_only_the_latest_ended_runs_are_shown() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for number in range(100):
        metrics.run_progressed(f"run-{number}")
        metrics.round_completed(f"run-{number}", examples.ROUND)
        metrics.run_ended(f"run-{number}")
        metrics.run_left(f"run-{number}")
    runs = {
        sample.labels["run"]
        for family in registry.collect()
        for sample in family.samples
        if "run" in sample.labels
    }
    assert runs == {f"run-{number}" for number in range(80, 100)}
    assert len(metrics._best) <= 20
