"""Builds a device: each object gets the few others that it works with.

`serving.serve` runs what `build` returns. Tests call `build`, too, with peers, an engine and times
of their own.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

from edge_client.agent import Agent
from edge_client.console import StatusLine
from edge_client.device.conditions import Conditions, probes
from edge_client.device.content_cache import ContentCache
from edge_client.device.device_folder import DeviceFolder
from edge_client.device.memory_limit import MemoryLimit
from edge_client.device.own_images import Images, OwnImages
from edge_client.device.this_device import ThisDevice
from edge_client.device.traffic import TrafficBudget
from edge_client.engines.engine import Engine, open_engine
from edge_client.leased_work import LeasedWork
from edge_client.metrics import EdgeMetrics
from edge_client.pace import Pace
from edge_client.peers import Peers
from edge_client.settings import EdgeSettings
from edge_client.tasks.downloads import TaskDownloads
from edge_client.tasks.evaluate_task import EvaluateTask
from edge_client.tasks.finished_results import FinishedResults
from edge_client.tasks.submitter import Submitter
from edge_client.tasks.synthesise_task import SynthesiseTask
from edge_client.tasks.task_runner import TaskRunner
from edge_client.tasks.task_watch import TaskWatch
from edge_client.tasks.train_task import TrainTask
from edge_client.tasks.transfers import Transfers
from edge_client.tasks.workbench import Workbench


@dataclass(frozen=True, slots=True)
class Machine:
    """What the device computes with, and its owner's limits."""

    engine: Engine
    images: Images
    held_out: Images  # the device evaluates models on them
    memory: MemoryLimit
    conditions: Conditions
    budget: TrafficBudget
    line: StatusLine


def open_machine(settings: EdgeSettings) -> Machine:
    """Read the images and load the engine. Blocks: call it in a thread."""
    memory = MemoryLimit(settings.max_memory_bytes)
    conditions = Conditions(
        settings.required_conditions,
        probes(settings.condition_arguments, settings.charging, settings.unmetered),
    )
    class_names = settings.own_class_names
    images = OwnImages(settings.data, "the device's data", class_names)
    held_out = images
    if settings.held_out:
        name = "the device's held-out set (HFMDS_HELD_OUT)"
        held_out = OwnImages(settings.held_out, name, class_names)
    return Machine(
        engine=open_engine(settings, memory.left_bytes),
        images=images,
        held_out=held_out,
        memory=memory,
        conditions=conditions,
        budget=TrafficBudget(settings.state_dir / "traffic.json", settings.traffic_bytes_per_day),
        line=_status_line(settings),
    )


def build(
    settings: EdgeSettings,
    state: DeviceFolder,
    machine: Machine,
    peers: Peers,
    metrics: EdgeMetrics,
    pace: Pace,
) -> Agent:
    """Build the device on its folder, its machine and its peers."""
    engine, budget = machine.engine, machine.budget
    cache = ContentCache(
        settings.state_dir / "cache",
        settings.cache_max_bytes,
        received=budget.counted_with(metrics.received_bytes.inc),
        sent=budget.counted_with(metrics.sent_bytes.inc),
    )
    transfers = Transfers(budget)
    downloads = TaskDownloads(
        peers,
        cache,
        transfers,
        device_id=state.device_id,
        fetches_plans=engine.needs_plan,
        pool_max_bytes=settings.pool_max_bytes,
    )
    submitter = Submitter(peers, cache, transfers, device_id=state.device_id)
    watch = TaskWatch(machine.memory, machine.line)
    bench = Workbench(engine, state, cache, watch, metrics, tells_cost=settings.report_cost)
    results = FinishedResults(state, cache, pace.wait_for_room_seconds)
    train = TrainTask(machine.images, downloads, bench, results, metrics)
    synthesise = SynthesiseTask(machine.images, downloads, bench, results, metrics)
    evaluate = EvaluateTask(machine.held_out, downloads, bench, results)
    runner = TaskRunner(train, synthesise, evaluate, results, submitter)
    separate = machine.held_out is not machine.images
    this_device = ThisDevice(
        [machine.images, machine.held_out] if separate else [machine.images],
        machine.memory,
        machine.conditions,
        budget,
        engine=engine.name,
        labels=settings.own_labels,
    )
    leased_work = LeasedWork(runner, peers, this_device, pace)
    return Agent(
        this_device,
        peers,
        leased_work,
        metrics,
        pace,
        run_id=settings.run,
        wait_seconds=settings.wait_seconds,
        once=settings.once,
    )


def _status_line(settings: EdgeSettings) -> StatusLine:
    line = StatusLine(sys.stderr, wanted=settings.log_format == "console")
    for handler in logging.getLogger().handlers:
        line.make_way_for(handler)
    return line
