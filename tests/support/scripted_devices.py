"""Devices that do everything but learn: real agents over real gRPC, many in one process.

The result of their engine depends on exactly what a real result depends on: the seed of the task,
w^t, the pool, and the memory of earlier tasks. So lost, repeated or doubly counted work shows in
the weights. This module does not need torch.
"""

from __future__ import annotations

import asyncio
import random
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from prometheus_client import CollectorRegistry

from edge_client.console import StatusLine
from edge_client.device.conditions import Conditions, probes
from edge_client.device.device_folder import DeviceFolder
from edge_client.device.memory_limit import MemoryLimit
from edge_client.device.traffic import TrafficBudget
from edge_client.metrics import EdgeMetrics
from edge_client.pace import Pace
from edge_client.peers import Coordinator, Peers, Store
from edge_client.retry import Retry
from edge_client.settings import EdgeSettings
from edge_client.wiring import Machine, build
from hfmds.algorithm.local_work import LocalWork, Memory, Progress, Synthesis, TrainedModel
from hfmds.domain.learning import Evaluation, LabelledImages, SyntheticBatch
from hfmds.domain.recipe import ModelSpec
from hfmds.service.client.channel import Backoff
from hfmds.service.client.peer import Peer
from hfmds.wire.clients.coordinator_client import CoordinatorClient
from hfmds.wire.clients.store_client import StoreClient
from tests.support.still_images import StillImages

Script: TypeAlias = Callable[[LocalWork, Progress], None]
"""Runs before the work of a device. It raises to give the task up."""

QUICK = Backoff(first_seconds=0.05, max_seconds=0.2)

MODEL = ModelSpec(channels=1, height=16, width=16, classes=3)
LARGE_MODEL = ModelSpec(channels=1, height=32, width=32, classes=3)  # 3.5 MB: several chunks


def images_for(model: ModelSpec) -> LabelledImages:
    """Return the images of a device. The scripted engine does not read them."""
    return LabelledImages(np.zeros((3, *model.image_shape), np.uint8), np.arange(3))


def do_nothing(work: LocalWork, progress: Progress) -> None:
    """Let the device do its work."""


def retrying(name: str) -> Retry:
    """Return a retry policy for a service that is killed and started again."""
    return Retry(peer(name, "its address"), QUICK, rng=random.Random(0))


def peer(name: str, address: str) -> Peer:
    return Peer(name, address, f"HFMDS_{name.upper()}")


class ScriptedEngine:
    """Draws random weights and images instead of learning them."""

    name = "scripted"
    needs_plan = False

    def __init__(self, script: Script = do_nothing) -> None:
        self._script = script

    def train(self, work: LocalWork, progress: Progress) -> TrainedModel:
        drawn, memory = self._begin(work, progress)
        step = np.float32(0.01 * (drawn.normal() + memory["past"][0] + _number(work.pool)))
        trains = work.recipe.method.trains
        names = [name for name in work.weights if trains(name, work.round_number)]
        weights = {name: work.weights[name] + step for name in names}
        return TrainedModel(weights, len(work.shard), float(abs(step)), memory)

    def synthesise(self, work: LocalWork, progress: Progress) -> Synthesis:
        drawn, memory = self._begin(work, progress)
        count, shape = work.recipe.method.samples_per_device, work.recipe.model.image_shape
        pixels = drawn.integers(0, 256, (count, *shape), dtype=np.uint8)
        pixels += np.uint8(10 * memory["past"][0])
        pixels[0] = 7  # every device makes this image, so the store merges it
        images = LabelledImages(pixels, np.resize(work.shard.labels, count))
        psnr, ssim = np.full(count, 9.0, np.float32), np.full(count, 0.125, np.float32)
        return Synthesis(SyntheticBatch(images, psnr, psnr, ssim, ssim), memory)

    def evaluate(self, work: LocalWork, progress: Progress) -> Evaluation:
        self._script(work, progress)
        progress(1, 1)
        drawn = np.random.default_rng(work.seed)
        return Evaluation(float(drawn.random()), float(drawn.random()), len(work.shard))

    def _begin(self, work: LocalWork, progress: Progress) -> tuple[np.random.Generator, Memory]:
        self._script(work, progress)
        progress(1, 1)
        drawn = np.random.default_rng(work.seed)
        past = work.memory["past"][0] if work.memory else 0.0
        return drawn, {"past": np.array([past / 2 + drawn.random()], np.float32)}


def _number(pool: LabelledImages | None) -> float:
    """Return a number that depends on the images and on their order."""
    return zlib.crc32(pool.pixels.tobytes()) / 2**32 if pool else 0.0


STEPS = (
    ScriptedEngine.train,
    ScriptedEngine.synthesise,
    DeviceFolder.save_memory,
    DeviceFolder.save_result,
    CoordinatorClient.submit_update,
    StoreClient.put_batch,
    CoordinatorClient.submit_synthesis,
)
"""The methods of a device with lasting effects in memory, on disk or at a server."""


@dataclass(frozen=True)
class Call:
    """A call that a device is about to make. An interceptor may repeat it."""

    client: Any
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    async def __call__(self) -> Any:
        return await getattr(self.client, self.method)(*self.args, **self.kwargs)


Interceptor: TypeAlias = Callable[[Call], Awaitable[Any]]
"""Sits between a device and its clients: makes the call, or does something else."""


async def pass_on(call: Call) -> Any:
    return await call()


async def renew_first(call: Call) -> Any:
    """Renew the lease of a task before its update is sent, as a device does in long work."""
    if call.method == "submit_update":
        await call.client.renew_lease(call.args[0])
    return await call()


class _Intercepted:
    """A client whose calls go through an interceptor."""

    def __init__(self, client: Any, interceptor: Interceptor) -> None:
        self._client = client
        self._interceptor = interceptor

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        def call(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return self._interceptor(Call(self._client, method, args, kwargs))

        return call


class ScriptedDevice:
    """One device, with its state in a folder of its name."""

    def __init__(
        self,
        device_id: str,
        folder: Path,
        coordinator: str,
        store: str,
        *,
        model: ModelSpec = MODEL,
        script: Script = do_nothing,
        interceptor: Interceptor = pass_on,
    ) -> None:
        self.device_id = device_id
        self._folder = folder / device_id
        self._addresses = coordinator, store
        self._images = StillImages("scripted data", images_for(model))
        self._script = script
        self._interceptor = interceptor

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Let the device work inside this context. It then stops as if killed."""
        async with AsyncExitStack() as stack:
            at_coordinator, at_store = map(peer, ("coordinator", "store"), self._addresses)
            self._coordinator = CoordinatorClient(at_coordinator, self.device_id)
            stack.push_async_callback(self._coordinator.close)
            store = StoreClient(at_store)
            stack.push_async_callback(store.close)
            self._retry = retrying("coordinator")
            peers = Peers(
                cast(Coordinator, _Intercepted(self._coordinator, self._interceptor)),
                self._retry,
                cast(Store, _Intercepted(store, self._interceptor)),
                retrying("store"),
            )
            self._work = asyncio.create_task(self._run(peers))
            try:
                yield
            finally:
                await self.stop()

    async def stop(self) -> None:
        """Stop as if killed."""
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def leave(self) -> None:
        """Stop, and tell the coordinator."""
        await self.stop()
        await self._retry.call(self._coordinator.leave)

    async def _run(self, peers: Peers) -> None:
        settings = EdgeSettings(data="not read", state_dir=self._folder, cache_max_bytes=1 << 30)
        machine = Machine(
            ScriptedEngine(self._script),
            self._images,
            self._images,
            MemoryLimit(None),
            Conditions((), probes()),
            TrafficBudget(self._folder / "traffic.json", None),
            StatusLine(sys.stderr, wanted=False),
        )
        metrics = EdgeMetrics(CollectorRegistry())
        with closing(DeviceFolder(self._folder, self.device_id)) as state:
            await build(settings, state, machine, peers, metrics, Pace(QUICK)).run()
