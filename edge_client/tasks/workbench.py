"""Where tasks are computed: the engine, what it gets, and what a computation costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from edge_client.device.content_cache import ContentCache
from edge_client.device.device_folder import DeviceFolder
from edge_client.device.memory_limit import peak_memory_bytes
from edge_client.device.meter import Meter
from edge_client.engines.computation import Observer, compute
from edge_client.engines.engine import Engine
from edge_client.metrics import EdgeMetrics
from hfmds.algorithm.device_memory import with_memory
from hfmds.algorithm.local_work import LocalWork, Progress
from hfmds.algorithm.pool import concatenate
from hfmds.domain.digest import Digest
from hfmds.domain.learning import LabelledImages
from hfmds.domain.methods import TaskKind
from hfmds.domain.tasks import Assignment, DeviceReport
from hfmds.service.monitoring.tracing import span
from hfmds.wire.tensors import StoredWeights, read_batch

R = TypeVar("R")


class Workbench:
    """The engine with the device's files and meters."""

    def __init__(
        self,
        engine: Engine,
        state: DeviceFolder,
        cache: ContentCache,
        observer: Observer,
        metrics: EdgeMetrics,
        *,
        tells_cost: bool = True,
    ) -> None:
        """With `tells_cost` the coordinator hears with each result what it cost."""
        self.engine = engine
        self._state = state
        self._cache = cache
        self._observer = observer
        self._metrics = metrics
        self._tells_cost = tells_cost

    async def compute(self, task: Assignment, what: str, work: Callable[[Progress], R]) -> R:
        """Run `work(progress)` in a thread, watched by the observer."""
        with span("compute"):
            return await compute(
                f"round {task.round_number}, {what}", work, observer=self._observer
            )

    def local_work(
        self,
        task: Assignment,
        kind: TaskKind,
        images: LabelledImages,
        shards: Sequence[Digest] = (),
    ) -> LocalWork:
        """Describe the task to the engine, with what this device kept of earlier tasks.

        The `images` are the device's own, and the `shards` those of a snapshot.
        """
        kept = self._state.memory(
            task.run_uid, task.recipe.method.memory_of(kind), task.round_number
        )
        work = LocalWork(
            recipe=task.recipe,
            round_number=task.round_number,
            weights=StoredWeights(self._cache.path(task.weights), f"weights {task.weights}"),
            shard=images,
            seed=task.seed,
            pool=self._pool(shards) if shards else None,
            plan=self._cache.path(task.plan) if task.plan and self.engine.needs_plan else None,
        )
        return with_memory(work, kept)

    def _pool(self, shards: Sequence[Digest]) -> LabelledImages:
        """Return the snapshot's images in the order of its manifest, as simulated fleets do."""
        return concatenate([read_batch(self._cache.path(d), f"shard {d}") for d in shards]).images

    @contextmanager
    def meter(self, kind: TaskKind, progress: Progress) -> Iterator[Meter]:
        """Measure the engine's work inside; failed work is not counted."""
        with Meter(progress, self._metrics.step.labels(kind).observe) as meter:
            yield meter
        self._metrics.observe_cost(kind, meter.seconds, meter.cpu_seconds)

    def cost(self, meter: Meter, **more: Any) -> DeviceReport | None:
        """Return the task's cost for the coordinator, if the owner allows it."""
        if not self._tells_cost:
            return None
        return DeviceReport(meter.steps, meter.cpu_seconds, peak_memory_bytes(), **more)
