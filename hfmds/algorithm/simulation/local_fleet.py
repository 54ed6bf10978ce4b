"""A fleet inside this process: its devices are shards of a data set.

For simulation, research and tests. With the same recipe it gives the same weights as real devices:
it derives each task's seed as the coordinator does. It moves no bytes, so its traffic is zero. Its
pools, and what its devices remember, are in memory. `state` and `restore` carry them over to
another process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.aggregation.compression import unpacked
from hfmds.algorithm.device_memory import finish_training, round_before, with_memory
from hfmds.algorithm.evaluation import choose_evaluators, combine_evaluations
from hfmds.algorithm.leakage.measurement import summarise_leakage
from hfmds.algorithm.local_work import LocalWork, Memory, Synthesis, SynthesisHealth, TrainedModel
from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.pool import merge
from hfmds.algorithm.sampling import Candidate, choose_cohort
from hfmds.algorithm.seeds import task_seed
from hfmds.algorithm.torch_steps.torch_evaluation import evaluate, evaluate_locally
from hfmds.domain.learning import (
    MEASUREMENTS,
    DeviceEvaluation,
    Evaluation,
    LabelledImages,
    Pool,
    SyntheticBatch,
    Update,
    Weights,
)
from hfmds.domain.methods import TaskKind
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.recipe import Recipe, default_pool
from hfmds.domain.round_policy import EvaluationByDevices
from hfmds.errors import InvalidInput, NotFound

Result = TypeVar("Result")

_KEPT_ROUNDS = 2  # a replayed round starts from what a device kept before it


class Workers(Protocol):
    """Do the devices' work. Results come in the order of the tasks."""

    def train(self, works: Iterable[LocalWork]) -> Iterator[TrainedModel]:
        """Do ClientUpdate for each task."""

    def synthesise(self, works: Iterable[LocalWork]) -> Iterator[Synthesis]:
        """Do DataSynthesis for each task."""


class InProcess:
    """Workers in the calling thread: one task after the other, on torch's `compute_device`."""

    def __init__(self, compute_device: str = "cpu") -> None:
        self._device = compute_device

    def train(self, works: Iterable[LocalWork]) -> Iterator[TrainedModel]:
        return (method_of(work.recipe).train(work, device=self._device) for work in works)

    def synthesise(self, works: Iterable[LocalWork]) -> Iterator[Synthesis]:
        return (method_of(work.recipe).synthesise(work, device=self._device) for work in works)


class LocalFleet:
    """Simulated devices by id, each with its shard, and a held-out set of the fleet."""

    def __init__(
        self,
        recipe: Recipe,
        shards: Mapping[str, LabelledImages],
        held_out: LabelledImages | None = None,
        workers: Workers | None = None,
        evaluation: EvaluationByDevices = EvaluationByDevices(),  # noqa: B008 (frozen)
        compute_device: str = "cpu",
    ) -> None:
        """Models are evaluated on torch's `compute_device`; without `workers` they train there."""
        for device_id, shard in shards.items():
            if "/" in device_id:  # `state` separates the parts of an array's name by it
                raise InvalidInput(f"device id {device_id!r} has a slash: use an id without one")
            shard.require_fit(recipe.model, f"the shard of device {device_id!r}")
        plain = (PoolPolicy(), default_pool(recipe.method))
        if replace(recipe.pool, pixel_type="uint8") not in plain:
            raise InvalidInput(
                "the recipe has settings of pool other than pool.pixel_type, but simulated devices "
                "have no synthesis store to apply them: leave these settings out"
            )
        # A device without data has nothing to learn from: it is never available.
        self._shards = {d: shards[d] for d in sorted(shards) if len(shards[d])}
        if not self._shards:
            raise InvalidInput("a fleet needs at least one device with images")
        self._recipe = recipe
        self._held_out = held_out
        self._evaluation = evaluation
        self._device = compute_device
        self._workers = workers or InProcess(compute_device)
        self._pools: dict[str, SyntheticBatch] = {}
        self._memories: defaultdict[tuple[str, str], dict[int, Memory]] = defaultdict(dict)
        self._losses: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._health: dict[int, dict[str, SynthesisHealth]] = {}

    # --- Fleet ----------------------------------------------------------------------------------

    def synthesise(self, round_number: int, weights: Weights) -> Pool:
        works = self._works("synthesise", self._shards, round_number, weights)
        results = self._workers.synthesise(works.values())
        syntheses: dict[str, Synthesis] = {}
        for device_id in works:
            with _naming(device_id, round_number):
                syntheses[device_id] = next(results)
            memory = syntheses[device_id].memory
            self._remember("synthesise", device_id, round_number, memory)
        self._health[round_number] = {d: s.health for d, s in syntheses.items() if s.health}
        merged = merge({d: s.batch for d, s in syntheses.items()})
        snapshot_id = f"round-{round_number}"
        self._pools[snapshot_id] = merged
        leakage = summarise_leakage(merged.psnr_paired, merged.psnr_nearest)
        return Pool(snapshot_id, len(merged), leakage)

    def train(self, round_number: int, weights: Weights, pool: Pool | None) -> Iterator[Update]:
        cohort = choose_cohort(self.candidates(round_number), self._recipe, round_number)
        return self.train_devices(cohort, round_number, weights, pool)

    def train_devices(
        self, devices: Sequence[str], round_number: int, weights: Weights, pool: Pool | None
    ) -> Iterator[Update]:
        """Have these devices train, given by id in order."""
        images = self.pool_batch(pool).images if pool else None
        works = self._works("train", devices, round_number, weights, images)
        results = self._workers.train(works.values())
        for device_id, work in works.items():
            with _naming(device_id, round_number):
                trained = next(results)
                packed, memory = finish_training(work, trained)
            self._remember("train", device_id, round_number, memory)
            _keep(self._losses[device_id], round_number, trained.loss)
            received = unpacked(self._recipe, packed, weights)
            yield Update(device_id, received, trained.samples, trained.loss)

    def evaluate(self, round_number: int, weights: Weights) -> Evaluation | None:
        if self._held_out is None:
            return None
        return evaluate(
            self._recipe.model,
            weights,
            self._recipe.normalisation,
            self._held_out,
            device=self._device,
        )

    def evaluate_on_devices(self, round_number: int, weights: Weights) -> DeviceEvaluation | None:
        if not self._evaluation.due(round_number, self._recipe.rounds):
            return None
        chosen = choose_evaluators(
            self._evaluation, self.candidates(round_number), self._recipe, round_number
        )
        works = self._works("evaluate", chosen, round_number, weights).values()
        return combine_evaluations(evaluate_locally(work, device=self._device) for work in works)

    # --- looking inside -------------------------------------------------------------------------

    def candidates(self, round_number: int) -> Sequence[Candidate]:
        """Return all devices, as the draw of a round's cohort sees them."""
        return tuple(
            Candidate(device_id, len(shard), _before(self._losses[device_id], round_number))
            for device_id, shard in self._shards.items()
        )

    def pool_batch(self, pool: Pool) -> SyntheticBatch:
        """Return the images of a pool that this fleet has sealed or was restored with."""
        if pool.snapshot_id not in self._pools:
            raise NotFound(
                f"this fleet has no pool {pool.snapshot_id!r}: restore the state of the fleet "
                "that made it, or resume before its refresh"
            )
        return self._pools[pool.snapshot_id]

    def health(self, round_number: int) -> Mapping[str, SynthesisHealth]:
        """Return the health of each device's synthesis at a refresh of this process."""
        if round_number not in self._health:
            raise NotFound(f"there was no refresh at round {round_number}")
        return self._health[round_number]

    # --- carrying over --------------------------------------------------------------------------

    def state(self, pool: Pool | None) -> dict[str, NDArray[np.generic]]:
        """Return what the devices remember, and this pool, as named arrays."""
        arrays: dict[str, NDArray[np.generic]] = {}
        for (phase, device_id), by_round in self._memories.items():
            for round_number, memory in by_round.items():
                for name, array in memory.items():
                    arrays[f"memory/{phase}/{device_id}/{round_number}/{name}"] = array
        for device_id, losses in self._losses.items():
            for round_number, loss in losses.items():
                arrays[f"loss/train/{device_id}/{round_number}"] = np.array(loss, np.float64)
        if pool:
            batch = self.pool_batch(pool)
            values: dict[str, NDArray[Any] | None] = {
                "pixels": batch.images.pixels,
                "labels": batch.images.labels,
                "shares": batch.images.shares,
                **batch.measurements,
            }
            for name, value in values.items():
                if value is not None:
                    arrays[f"pool/{pool.snapshot_id}/{name}"] = value
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore the `state` of another fleet with the same recipe and shards."""
        memories: defaultdict[tuple[str, str], dict[int, dict[str, NDArray[np.float32]]]]
        memories = defaultdict(lambda: defaultdict(dict))
        pools: defaultdict[str, dict[str, NDArray[np.generic]]] = defaultdict(dict)
        losses: defaultdict[str, dict[int, float]] = defaultdict(dict)
        for name, array in arrays.items():
            match name.split("/", 4):
                case ["memory", phase, device_id, round_number, weight]:
                    memories[phase, device_id][int(round_number)][weight] = array.astype(np.float32)
                case ["loss", "train", device_id, round_number]:
                    losses[device_id][int(round_number)] = float(array.astype(np.float64))
                case ["pool", snapshot_id, field]:
                    pools[snapshot_id][field] = array
        self._memories.clear()
        self._losses = losses
        for key, by_round in memories.items():
            self._memories[key] = dict(by_round)
        for snapshot_id, fields in pools.items():
            pixels, labels, shares = fields["pixels"], fields["labels"], fields.get("shares")
            self._pools[snapshot_id] = SyntheticBatch(
                LabelledImages(
                    pixels.astype(np.float16 if pixels.dtype == np.float16 else np.uint8),
                    labels.astype(np.int64),
                    None if shares is None else shares.astype(np.float32),
                ),
                **{name: fields[name].astype(np.float32) for name in MEASUREMENTS},
            )

    # --- parts ----------------------------------------------------------------------------------

    def _works(
        self,
        kind: TaskKind,
        devices: Iterable[str],
        round_number: int,
        weights: Weights,
        pool: LabelledImages | None = None,
    ) -> dict[str, LocalWork]:
        """Return each device's task, in the order of the devices."""
        works: dict[str, LocalWork] = {}
        for device_id in devices:
            work = LocalWork(
                recipe=self._recipe,
                round_number=round_number,
                weights=weights,
                shard=self._shards[device_id],
                seed=task_seed(self._recipe.seed, kind, round_number, device_id),
                pool=pool,
            )
            memories = self._memories[self._recipe.method.memory_of(kind), device_id]
            works[device_id] = with_memory(work, _before(memories, round_number) or {})
        return works

    def _remember(self, kind: TaskKind, device_id: str, round_number: int, memory: Memory) -> None:
        if memory:
            _keep(self._memories[kind, device_id], round_number, memory)


def _before(by_round: Mapping[int, Result], round_number: int) -> Result | None:
    """Return the last value from before a round, which may be a replayed one."""
    before = round_before(by_round, round_number)
    return None if before is None else by_round[before]


def _keep(by_round: dict[int, Result], round_number: int, value: Result) -> None:
    """Keep the value of a round, and of the last rounds before it."""
    by_round[round_number] = value
    for old in sorted(by_round)[:-_KEPT_ROUNDS]:
        del by_round[old]


@contextmanager
def _naming(device_id: str, round_number: int) -> Iterator[None]:
    """Name the device and the round in errors."""
    try:
        yield
    except InvalidInput as error:
        raise type(error)(f"round {round_number}, device {device_id!r}: {error}") from error
