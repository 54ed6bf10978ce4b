"""Devices that do everything but learn, many in one process: the real agent over real gRPC.

What their engine returns depends on all that a device's result should depend on (the task's seed,
w^t, the pool, what it remembers of earlier tasks) and on nothing else, so that work lost, repeated
or counted twice shows in the weights. Without torch.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from prometheus_client import CollectorRegistry

from edge_client.agent import Agent
from edge_client.device.content_cache import ContentCache
from edge_client.device.device_folder import DeviceFolder
from edge_client.metrics import EdgeMetrics
from edge_client.peers import Coordinator, Peers, Store
from edge_client.retry import Retry
from edge_client.tasks.task_runner import TaskRunner
from hfmds.algorithm.local_work import LocalWork, Memory, Progress, Synthesis, TrainedModel
from hfmds.data.named_images import NamedImages
from hfmds.domain.devices import DeviceProfile
from hfmds.domain.learning import Evaluation, LabelledImages, SyntheticBatch
from hfmds.domain.recipe import ModelSpec
from hfmds.service.client.channel import Backoff
from hfmds.service.client.peer import Peer
from hfmds.wire.clients.coordinator_client import CoordinatorClient
from hfmds.wire.clients.store_client import StoreClient

Script: TypeAlias = Callable[[LocalWork, Progress], None]
"""What a device does before its work; raising gives the task up."""

QUICK = Backoff(first_seconds=0.05, max_seconds=0.2)

MODEL = ModelSpec(channels=1, height=16, width=16, classes=3)
LARGE_MODEL = ModelSpec(channels=1, height=32, width=32, classes=3)  # 3.5 MB: several chunks


def images_for(model: ModelSpec) -> LabelledImages:
    """What every device holds; it computes nothing with it."""
    return LabelledImages(np.zeros((3, *model.image_shape), np.uint8), np.arange(3))


def do_nothing(work: LocalWork, progress: Progress) -> None:
    """The script of a device that simply does its work."""


def patience(name: str) -> Retry:
    """That of one who calls a service that is killed and started again."""
    return Retry(peer(name, "its address"), QUICK, rng=random.Random(0))


def peer(name: str, address: str) -> Peer:
    return Peer(name, address, f"HFMDS_{name.upper()}")


class ScriptedEngine:
    """Draws what a device would learn."""

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
        many, shape = work.recipe.method.samples_per_device, work.recipe.model.image_shape
        pixels = drawn.integers(0, 256, (many, *shape), dtype=np.uint8)
        pixels += np.uint8(10 * memory["past"][0])
        pixels[0] = 7  # every device makes this one: the store has something to merge
        images = LabelledImages(pixels, np.resize(work.shard.labels, many))
        psnr, ssim = np.full(many, 9.0, np.float32), np.full(many, 0.125, np.float32)
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
    """One that is another for other images, or for the same in another order."""
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
"""What a device does that leaves something behind, in the process, on disk or elsewhere."""


@dataclass(frozen=True)
class Call:
    """A call that a device is about to make; may be made more than once."""

    client: Any
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    async def __call__(self) -> Any:
        return await getattr(self.client, self.method)(*self.args, **self.kwargs)


Meddler: TypeAlias = Callable[[Call], Awaitable[Any]]
"""Stands between a device and its clients: makes the call, or whatever it likes."""


async def meddle_not(call: Call) -> Any:
    return await call()


async def renew_first(call: Call) -> Any:
    """Renews the lease of a task before its update is sent, as a device does at long work."""
    if call.method == "submit_update":
        await call.client.renew_lease(call.args[0])
    return await call()


class _Meddled:
    """A client whose calls go through a meddler."""

    def __init__(self, client: Any, meddler: Meddler) -> None:
        self._client = client
        self._meddler = meddler

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        def call(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return self._meddler(Call(self._client, method, args, kwargs))

        return call


class ScriptedDevice:
    """One device, kept in a folder of its name."""

    def __init__(
        self,
        device_id: str,
        folder: Path,
        coordinator: str,
        store: str,
        *,
        model: ModelSpec = MODEL,
        script: Script = do_nothing,
        meddler: Meddler = meddle_not,
    ) -> None:
        self.device_id = device_id
        self._folder = folder / device_id
        self._addresses = coordinator, store
        self._images = NamedImages("scripted data", images_for(model))
        self._script = script
        self._meddler = meddler

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Inside, it is at work; at the end it stops without a word, as if killed."""
        async with AsyncExitStack() as stack:
            at_coordinator, at_store = map(peer, ("coordinator", "store"), self._addresses)
            self._coordinator = CoordinatorClient(at_coordinator, self.device_id)
            stack.push_async_callback(self._coordinator.close)
            store = StoreClient(at_store)
            stack.push_async_callback(store.close)
            self._patience = patience("coordinator")
            peers = Peers(
                cast(Coordinator, _Meddled(self._coordinator, self._meddler)),
                self._patience,
                cast(Store, _Meddled(store, self._meddler)),
                patience("store"),
            )
            self._work = asyncio.create_task(self._be(peers))
            try:
                yield
            finally:
                await self.stop()

    async def stop(self) -> None:
        """Stop without a word."""
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def leave(self) -> None:
        """Stop, and say goodbye."""
        await self.stop()
        await self._patience.call(self._coordinator.leave)

    async def _be(self, peers: Peers) -> None:
        metrics = EdgeMetrics(CollectorRegistry())
        cache = ContentCache(self._folder / "cache", 1 << 30)
        engine = ScriptedEngine(self._script)
        profile = DeviceProfile(len(self._images), "test", engine.name)
        with closing(DeviceFolder(self._folder, self.device_id)) as state:
            runner = TaskRunner(peers, engine, self._images, state, cache, metrics)
            await Agent(lambda: profile, peers, runner, metrics, backoff=QUICK).run()
