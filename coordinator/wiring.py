"""Builds the coordinator: each object gets the few others that it works with.

`serving.serve` runs what `build` returns. Tests call `build` too, with a store and a clock of
their own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy import Engine

from coordinator.api.admin_service import AdminServicer
from coordinator.api.device_service import CoordinatorServicer
from coordinator.devices.assignments import Assignments, WorkFinder
from coordinator.devices.check_in import CheckIns
from coordinator.devices.downloads import Downloads
from coordinator.devices.leases import Leases
from coordinator.devices.plans import Library, Plans
from coordinator.devices.registry import Registry
from coordinator.devices.results import Results
from coordinator.devices.retry_times import RetryTimes
from coordinator.devices.update_check import UpdateCheck
from coordinator.devices.uploads import Uploads
from coordinator.monitoring.funnel import FunnelRecords
from coordinator.monitoring.live_counts import Counts
from coordinator.monitoring.member_counts import count_members
from coordinator.monitoring.metrics import Metrics
from coordinator.monitoring.round_timing import RoundTimer
from coordinator.oversight.device_list import DeviceList
from coordinator.oversight.drain_switch import DrainSwitch
from coordinator.oversight.overview import Overview
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.drain import DrainRecords
from coordinator.records.events import EventRecords
from coordinator.records.runs import RunRecord
from coordinator.replicas.notices import Notices, Topic
from coordinator.runs.checkpoints import Checkpoints, RunModels
from coordinator.runs.content import Models, Recipes, RunContents
from coordinator.runs.content_deletion import Deletion
from coordinator.runs.driver import RunDriver
from coordinator.runs.drivers import Drivers
from coordinator.runs.evaluation import HeldOut, Learning
from coordinator.runs.phase_conductor import PhaseConductor
from coordinator.runs.pool_refresh import PoolRefresh, PoolStore
from coordinator.runs.remote_fleet import RemoteFleet
from coordinator.runs.run_control import DriverRecords, RunControl
from coordinator.runs.runs import Runs
from coordinator.runs.selection import Selection
from coordinator.settings import CoordinatorSettings
from hfmds.service.limits.retry_schedule import RetrySchedule
from hfmds.service.security.revocation_gate import Gate
from hfmds.storage.database import open_database, shown_url
from hfmds.storage.locations import open_location
from hfmds.storage.schema import Schema

log = logging.getLogger(__name__)

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Environment:
    """What surrounds a coordinator. Tests give it a store in memory and a clock of their own."""

    store: PoolStore
    library: Library | None  # makes plans; None: no device gets one
    gate: Gate
    loop: asyncio.AbstractEventLoop  # on which the store and devices are answered
    clock: Clock = time.time


@dataclass(frozen=True, slots=True)
class App:
    """The coordinator without its ports."""

    engine: Engine
    contents: RunContents
    registry: Registry
    plans: Plans | None
    devices: CoordinatorServicer
    admin: AdminServicer
    drivers: Drivers

    def counts(self) -> Counts:
        """Read the counts that metrics show; blocks."""
        members = count_members(self.engine, time.time())
        return replace(self.admin.overview.counts(), members=members)

    def close(self) -> None:
        """Send waiting devices away and end background work of the device side."""
        self.devices.check_ins.close()
        if self.plans:
            self.plans.close()


def open_tables(settings: CoordinatorSettings) -> Engine:
    """Open the coordinator's database, with the tables that this version works with."""
    engine = open_database(settings.resolved_database_url, "coordinator")
    log.info("database opened", extra={"database": shown_url(engine)})
    Schema("coordinator").prepare(engine)
    return engine


def build(
    settings: CoordinatorSettings,
    engine: Engine,
    notices: Notices,
    metrics: Metrics,
    environment: Environment,
) -> App:
    """Build the coordinator on its database."""
    store, loop, clock = environment.store, environment.loop, environment.clock
    records, tasks = DriverRecords.on(engine), TaskRecords(engine)
    drain = DrainRecords(engine, clock)
    blobs = open_location(
        settings.resolved_blobs_url, settings.data_dir / "cache", settings.blobs_cache_max_bytes
    )
    contents = RunContents(blobs, settings.data_dir / "uploads", settings.max_blob_bytes)
    contents.purge(settings.upload_ttl_seconds, clock())
    registry = Registry(engine, notices, clock, settings.device_away_seconds)
    library, plans = environment.library, None
    if library:
        plans = Plans(engine, blobs, library, settings.plans_max_bytes)
    recipes = Recipes(records.runs)
    assignments = Assignments(recipes, plans, notices)

    work = WorkFinder(tasks, records.runs, drain, assignments, metrics)
    schedule = RetrySchedule(settings.check_ins_per_second, settings.retry_seconds)
    retry_times = RetryTimes(schedule, registry, environment.gate, clock)
    check_ins = CheckIns(work, registry, retry_times, clock, settings.max_waiting_devices)
    leases = Leases(tasks, registry, metrics, notices, clock)
    downloads = Downloads(tasks, contents, plans)
    results = Results(tasks, registry, metrics, notices, clock)
    update_check = UpdateCheck(recipes, contents, tasks, metrics, clock)
    uploads = Uploads(results, contents, update_check)
    devices = CoordinatorServicer(check_ins, leases, downloads, uploads, results)

    held_out = HeldOut(settings.held_out, Learning(settings.threads))

    def new_driver(run: RunRecord, records: DriverRecords) -> RunDriver:
        models = Models(contents.of(run.run_id).blobs)
        control = RunControl(run.run_id, records.runs, notices, RoundTimer(run, metrics), clock)
        selection = Selection(run, registry, records.work, assignments.plan_ready)
        conductor = PhaseConductor(run, control, records, selection, metrics)
        refresh = PoolRefresh(run, control, records, store, loop)
        fleet = RemoteFleet(run, conductor, refresh, models, held_out)
        checkpoints = Checkpoints(run, records, models, held_out.learning)
        return RunDriver(run, control, fleet, checkpoints, metrics)

    deletion = Deletion(contents, store, loop, clock)
    drivers = Drivers(records, new_driver, deletion, notices, metrics)
    notices.listen(Topic.WORK, check_ins.wake)
    notices.listen(Topic.RUN, drivers.wake)

    models = RunModels(records, contents, held_out)
    runs = Runs(records, drivers, models, notices, clock)
    events, funnel = EventRecords(engine), FunnelRecords(engine)
    overview = Overview(runs, events, funnel, DeviceList(engine, registry, clock), drain)
    admin = AdminServicer(runs, models, overview, DrainSwitch(drain, notices))
    return App(engine, contents, registry, plans, devices, admin, drivers)
