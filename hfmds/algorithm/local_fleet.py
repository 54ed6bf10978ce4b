"""A fleet inside this process: devices are shards of a data set, worked through one by one.

For simulation, research and tests. With the same recipe it gives the weights that real devices
give, because each task's seed is derived as the coordinator derives it. It moves no bytes, so its
traffic is zero, and keeps its pools in memory only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hfmds.algorithm.engine import SynthesisHealth
from hfmds.algorithm.evaluation import evaluate
from hfmds.algorithm.pool import merge
from hfmds.algorithm.privacy import summarise_leakage
from hfmds.algorithm.prototypes import Prototypes
from hfmds.algorithm.seeds import task_seed
from hfmds.algorithm.synthesis import synthesise
from hfmds.algorithm.training import train
from hfmds.algorithm.types import (
    Evaluation,
    LabelledImages,
    Pool,
    Recipe,
    SyntheticBatch,
    Update,
    Weights,
)
from hfmds.errors import InvalidInput, NotFound


class LocalFleet:
    """Devices by id, each with its shard; the held-out set is the fleet's."""

    def __init__(
        self,
        recipe: Recipe,
        shards: Mapping[str, LabelledImages],
        held_out: LabelledImages | None = None,
    ) -> None:
        if not shards:
            raise InvalidInput("a fleet needs at least one device with a shard")
        for device_id, shard in shards.items():
            shard.require_fit(recipe.model, f"the shard of device {device_id!r}")
        self._recipe = recipe
        self._shards = {device_id: shards[device_id] for device_id in sorted(shards)}
        self._held_out = held_out
        self._pools: dict[str, SyntheticBatch] = {}
        # By round, then device: a replayed refresh must start from the refresh before it.
        self._prototypes: dict[int, dict[str, Prototypes]] = {}
        self._health: dict[int, dict[str, SynthesisHealth]] = {}

    def available(self, round_number: int) -> Sequence[str]:
        return tuple(self._shards)

    def synthesise(self, round_number: int, weights: Weights) -> Pool:
        earlier = [t for t in self._prototypes if t < round_number]
        previous = self._prototypes[max(earlier)] if earlier else {}
        made = {
            device_id: synthesise(
                self._recipe,
                weights,
                shard,
                previous.get(device_id, {}),
                task_seed(self._recipe.seed, "synthesise", round_number, device_id),
            )
            for device_id, shard in self._shards.items()
        }
        self._prototypes[round_number] = {d: s.prototypes for d, s in made.items()}
        self._health[round_number] = {d: s.health for d, s in made.items()}
        merged = merge({d: s.batch for d, s in made.items()})
        snapshot_id = f"round-{round_number}"
        self._pools[snapshot_id] = merged
        leakage = summarise_leakage(merged.psnr_paired, merged.psnr_nearest)
        return Pool(snapshot_id, len(merged), leakage)

    def train(
        self, round_number: int, weights: Weights, pool: Pool | None, cohort: Sequence[str]
    ) -> Iterator[Update]:
        images = self.pool_images(pool) if pool else None
        for device_id in sorted(cohort):
            seed = task_seed(self._recipe.seed, "train", round_number, device_id)
            trained = train(self._recipe, weights, self._shards[device_id], images, seed)
            yield Update(device_id, trained.weights, trained.samples, trained.loss)

    def evaluate(self, weights: Weights) -> Evaluation | None:
        if self._held_out is None:
            return None
        return evaluate(self._recipe.model, weights, self._recipe.normalisation, self._held_out)

    def pool_images(self, pool: Pool) -> LabelledImages:
        """The images of a pool this fleet has sealed."""
        if pool.snapshot_id not in self._pools:
            raise NotFound(
                f"this fleet has no pool {pool.snapshot_id!r}: it keeps pools in memory only; "
                "resume with the fleet that made it, or before its refresh"
            )
        return self._pools[pool.snapshot_id].images

    def health(self, round_number: int) -> Mapping[str, SynthesisHealth]:
        """How each device's synthesis went at a refresh."""
        if round_number not in self._health:
            raise NotFound(f"there was no refresh at round {round_number}")
        return self._health[round_number]
