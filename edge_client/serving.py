"""Runs the device: opens its folder, its peers and its metrics port, and closes them in order."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, closing
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from edge_client.device.device_folder import DeviceFolder
from edge_client.metrics import EdgeMetrics
from edge_client.pace import Pace
from edge_client.peers import Peers
from edge_client.retry import Retry
from edge_client.settings import EdgeSettings
from edge_client.wiring import build, open_machine
from hfmds.errors import HfmdsError
from hfmds.service.client.certificate_rotation import following_rotation
from hfmds.service.client.channel import Backoff
from hfmds.service.client.peer import Peer
from hfmds.service.monitoring.logs import log_context
from hfmds.service.monitoring.metrics_server import MetricsServer
from hfmds.service.monitoring.program_metrics import show_program
from hfmds.service.process.process import published_addresses
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
    """Run the device. It is ready while the coordinator answers."""
    os.nice(settings.nice)
    registry = CollectorRegistry()
    show_program("edge", registry, settings.tls)
    metrics = EdgeMetrics(registry)
    pace = Pace(Backoff(max_seconds=settings.retry_max_seconds))

    def retry_with(peer: Peer) -> Retry:
        observe = partial(metrics.observe_peer, peer.name)
        return Retry(peer, pace.backoff, rng=random.Random(), on_change=observe)  # noqa: S311

    async with AsyncExitStack() as stack:
        enrolled = await _enrolled(settings, stack, retry_with)
        device_id = enrolled.device_id if enrolled else settings.device_id
        state = stack.enter_context(closing(DeviceFolder(settings.state_dir, device_id)))
        stack.enter_context(log_context(device=state.device_id))
        machine = await asyncio.to_thread(open_machine, settings)
        stack.enter_context(closing(machine.line))
        coordinator = CoordinatorClient(settings.coordinator_peer, state.device_id)
        stack.push_async_callback(coordinator.close)
        stack.push_async_callback(_say_goodbye, coordinator)
        store = StoreClient(settings.store_peer)
        stack.push_async_callback(store.close)
        retry = retry_with(settings.coordinator_peer)
        peers = Peers(coordinator, retry, store, retry_with(settings.store_peer))
        agent = build(settings, state, machine, peers, metrics, pace)
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


async def _say_goodbye(coordinator: CoordinatorClient) -> None:
    try:
        await coordinator.leave()
    except HfmdsError as error:  # the coordinator will notice later
        log.debug("the coordinator did not hear the goodbye: %s", error)
