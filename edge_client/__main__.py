"""Starts a device: `python -m edge_client --data FOLDER`. Wires, and does nothing else."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from contextlib import AsyncExitStack, closing
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry

from edge_client.agent import Agent
from edge_client.cache import ContentCache
from edge_client.engine import open_engine
from edge_client.free_memory import free_memory_bytes
from edge_client.metrics import EdgeMetrics
from edge_client.patience import Patience
from edge_client.peers import Peers
from edge_client.settings import EdgeSettings
from edge_client.state import DeviceState
from edge_client.tasks import TaskRunner
from hfmds.data.named_images import load_named_images
from hfmds.errors import HfmdsError
from hfmds.service.channel import Backoff, Peer
from hfmds.service.metrics_http import MetricsServer
from hfmds.service.process import published_addresses, run
from hfmds.service.telemetry import log_context
from hfmds.wire.coordinator_client import CoordinatorClient
from hfmds.wire.store_client import StoreClient
from hfmds.wire.types import DeviceProfile

log = logging.getLogger(__name__)


async def serve(settings: EdgeSettings, stop: asyncio.Event) -> None:
    """Work until there is no more, or until `stop`: the task at hand then waits for our return."""
    working = asyncio.create_task(_work(settings))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (working, stopping):
        task.cancel()
    await asyncio.wait({working})
    if not working.cancelled():
        working.result()


async def _work(settings: EdgeSettings) -> None:
    """Ready (/readyz) while data and engine are loaded and the coordinator answers."""
    registry = CollectorRegistry()
    metrics = EdgeMetrics(registry)
    async with AsyncExitStack() as stack:
        state = stack.enter_context(closing(DeviceState(settings.state_dir, settings.device_id)))
        stack.enter_context(log_context(device=state.device_id))
        cache = ContentCache(settings.state_dir / "cache", settings.cache_max_bytes)
        images = await asyncio.to_thread(
            load_named_images, settings.data, "the device's data", settings.own_class_names
        )
        held_out = None
        if settings.held_out:
            held_out = await asyncio.to_thread(
                load_named_images,
                settings.held_out,
                "the device's held-out set (HFMDS_HELD_OUT)",
                settings.own_class_names,
            )
        engine = await asyncio.to_thread(open_engine, settings)

        backoff = Backoff(max_seconds=settings.retry_max_seconds)

        def patience_with(peer: Peer) -> Patience:
            observe = partial(metrics.observe_peer, peer.name)
            return Patience(peer, backoff, rng=random.Random(), on_change=observe)  # noqa: S311

        coordinator = CoordinatorClient(settings.coordinator_peer, state.device_id)
        stack.push_async_callback(coordinator.close)
        stack.push_async_callback(_say_goodbye, coordinator)
        store = StoreClient(settings.store_peer)
        stack.push_async_callback(store.close)
        patience = patience_with(settings.coordinator_peer)
        peers = Peers(coordinator, patience, store, patience_with(settings.store_peer))
        runner = TaskRunner(peers, engine, images, state, cache, metrics, held_out)
        agent = Agent(
            DeviceProfile(
                samples=len(images),
                software_version=_software_version(),
                engine=engine.name,
                labels=settings.own_labels,
                charging=settings.charging,
                unmetered=settings.unmetered,
            ),
            peers,
            runner,
            metrics,
            run_id=settings.run,
            wait_seconds=settings.wait_seconds,
            backoff=backoff,
            free_memory_bytes=free_memory_bytes,
        )
        server = stack.enter_context(
            MetricsServer(settings.metrics_listen, registry, patience.trouble)
        )
        stack.enter_context(published_addresses(settings.address_file, metrics=server.address))
        await agent.run()


async def _say_goodbye(coordinator: CoordinatorClient) -> None:
    try:
        await coordinator.leave()
    except HfmdsError as error:  # then it will be missed, only later
        log.debug("the coordinator did not hear the goodbye: %s", error)


def _software_version() -> str:
    try:
        return version("hfmds-fl")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"


def main() -> None:
    """The console script."""
    sys.exit(run("edge_client", EdgeSettings, serve))


if __name__ == "__main__":
    main()
