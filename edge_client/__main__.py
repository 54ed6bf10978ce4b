"""Wires and runs a device: `python -m edge_client --data FOLDER`."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, closing
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from edge_client.agent import Agent
from edge_client.console import StatusLine
from edge_client.device.conditions import Conditions, probes
from edge_client.device.content_cache import ContentCache
from edge_client.device.device_folder import DeviceFolder
from edge_client.device.memory_limit import MemoryLimit
from edge_client.device.own_images import OwnImages
from edge_client.device.traffic import TrafficBudget
from edge_client.engines.engine import open_engine
from edge_client.metrics import EdgeMetrics
from edge_client.peers import Peers
from edge_client.retry import Retry
from edge_client.settings import EdgeSettings
from edge_client.tasks.task_runner import TaskRunner
from hfmds.domain.devices import DeviceProfile
from hfmds.errors import HfmdsError
from hfmds.service.client.certificate_rotation import following_rotation
from hfmds.service.client.channel import Backoff, Peer
from hfmds.service.monitoring.logs import log_context
from hfmds.service.monitoring.metrics_server import MetricsServer
from hfmds.service.monitoring.program_metrics import show_program, software_version
from hfmds.service.process.process import published_addresses, run
from hfmds.wire.clients.coordinator_client import CoordinatorClient
from hfmds.wire.clients.store_client import StoreClient

if TYPE_CHECKING:
    from edge_client.identity.enrolled_device import EnrolledDevice

log = logging.getLogger(__name__)


async def serve(settings: EdgeSettings, stop: asyncio.Event) -> None:
    """Work until there is no more work, or until `stop`; an unfinished task waits."""
    working = asyncio.create_task(_work(settings))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (working, stopping):
        task.cancel()
    await asyncio.wait({working})
    if not working.cancelled():
        working.result()


async def _work(settings: EdgeSettings) -> None:
    """Wire the device and run it. It is ready while the coordinator answers."""
    os.nice(settings.nice)
    registry = CollectorRegistry()
    show_program("edge", registry, settings.tls)
    metrics = EdgeMetrics(registry)
    memory = MemoryLimit(settings.max_memory_bytes)
    async with AsyncExitStack() as stack:
        backoff = Backoff(max_seconds=settings.retry_max_seconds)

        def retry_with(peer: Peer) -> Retry:
            observe = partial(metrics.observe_peer, peer.name)
            return Retry(peer, backoff, rng=random.Random(), on_change=observe)  # noqa: S311

        enrolled = await _enrolled(settings, stack, retry_with)
        device_id = enrolled.device_id if enrolled else settings.device_id
        state = stack.enter_context(closing(DeviceFolder(settings.state_dir, device_id)))
        stack.enter_context(log_context(device=state.device_id))
        budget = TrafficBudget(settings.state_dir / "traffic.json", settings.traffic_bytes_per_day)
        cache = ContentCache(
            settings.state_dir / "cache",
            settings.cache_max_bytes,
            received=budget.counted_with(metrics.received_bytes.inc),
            sent=budget.counted_with(metrics.sent_bytes.inc),
        )
        conditions = await asyncio.to_thread(_open_conditions, settings)
        images = await asyncio.to_thread(
            OwnImages, settings.data, "the device's data", settings.own_class_names
        )
        held_out = None
        if settings.held_out:
            held_out = await asyncio.to_thread(
                OwnImages,
                settings.held_out,
                "the device's held-out set (HFMDS_HELD_OUT)",
                settings.own_class_names,
            )
        engine = await asyncio.to_thread(open_engine, settings, memory.left_bytes)

        coordinator = CoordinatorClient(settings.coordinator_peer, state.device_id)
        stack.push_async_callback(coordinator.close)
        stack.push_async_callback(_say_goodbye, coordinator)
        store = StoreClient(settings.store_peer)
        stack.push_async_callback(store.close)
        retry = retry_with(settings.coordinator_peer)
        peers = Peers(coordinator, retry, store, retry_with(settings.store_peer))
        observer = _TaskObserver(memory, stack.enter_context(closing(_status_line(settings))))
        runner = TaskRunner(
            peers,
            engine,
            images,
            state,
            cache,
            metrics,
            held_out,
            budget=budget,
            observer=observer,
            pool_max_bytes=settings.pool_max_bytes,
            tells_cost=settings.report_cost,
        )

        def profile() -> DeviceProfile:
            for own in (images, held_out):
                if own is not None:
                    own.look()
            return DeviceProfile(
                samples=len(images),
                software_version=software_version(),
                engine=engine.name,
                free_memory_bytes=memory.left_bytes(),
                labels=settings.own_labels,
                charging=conditions.holds("charging"),
                unmetered=conditions.holds("unmetered"),
            )

        def refusal(working: bool) -> str | None:
            # A task that was begun may end, even if it uses up the traffic of the day.
            return conditions.refusal() or (None if working else budget.refusal())

        agent = Agent(
            profile,
            peers,
            runner,
            metrics,
            run_id=settings.run,
            wait_seconds=settings.wait_seconds,
            once=settings.once,
            backoff=backoff,
            refusal=refusal,
        )
        server = stack.enter_context(
            MetricsServer(settings.metrics_listen, registry, retry.trouble)
        )
        stack.enter_context(published_addresses(settings.address_file, metrics=server.address))
        if enrolled is None:
            async with following_rotation(settings.tls, coordinator, store):
                await agent.run()
        else:
            await _while(enrolled.stay(coordinator, store), agent.run)


async def _while(
    background: Coroutine[None, None, None], work: Callable[[], Awaitable[None]]
) -> None:
    """Do the work with a task in the background; a failure of either ends both."""
    working, beside = asyncio.ensure_future(work()), asyncio.create_task(background)
    try:
        done, _ = await asyncio.wait({working, beside}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (working, beside):
            task.cancel()
        await asyncio.gather(working, beside, return_exceptions=True)


async def _enrolled(
    settings: EdgeSettings, stack: AsyncExitStack, retry_with: Callable[[Peer], Retry]
) -> EnrolledDevice | None:
    if not settings.enrols:
        return None
    # Imported here, because it loads a library that other devices do not need.
    from edge_client.identity.enrolled_device import enrol

    return await enrol(settings, stack, retry_with)


class _TaskObserver:
    """Shows the progress of a computation, and ends it if it needs too much memory."""

    def __init__(self, memory: MemoryLimit, line: StatusLine) -> None:
        self.check = memory.check
        self.show = line.show


def _status_line(settings: EdgeSettings) -> StatusLine:
    line = StatusLine(sys.stderr, wanted=settings.log_format == "console")
    for handler in logging.getLogger().handlers:
        line.make_way_for(handler)
    return line


def _open_conditions(settings: EdgeSettings) -> Conditions:
    return Conditions(
        settings.required_conditions,
        probes(settings.condition_arguments, settings.charging, settings.unmetered),
    )


async def _say_goodbye(coordinator: CoordinatorClient) -> None:
    try:
        await coordinator.leave()
    except HfmdsError as error:  # the coordinator will notice later
        log.debug("the coordinator did not hear the goodbye: %s", error)


def main() -> None:
    """Run the console script."""
    sys.exit(run("edge_client", EdgeSettings, serve))


if __name__ == "__main__":
    main()
