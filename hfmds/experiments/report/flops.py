"""Counts the operations of a device per round with torch's counter around the product's code.

Counted are the matrix products and convolutions of one device, forward and backward, two floating
point operations per multiply and add. Element-wise work (ReLU, norms, optimisers) is not counted,
and nothing of the server's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from hfmds.algorithm.local_work import LocalWork
from hfmds.algorithm.methods.method_registry import first_checkpoint, method_of
from hfmds.domain.learning import LabelledImages
from hfmds.domain.recipe import Recipe


@dataclass(frozen=True, slots=True)
class DeviceCost:
    """Floating point operations of one device."""

    training: float  # in a round without a pool; 0 without such a round
    training_with_pool: float  # in a round with a pool
    synthesis: float  # at a refresh
    preparation: float  # in all rounds before the classifier is trained
    training_rounds: int  # rounds that train the classifier
    rounds_with_pool: int  # rounds of these with a pool
    refreshes: int

    @property
    def per_round(self) -> float:
        """The mean over all rounds of the classifier, with all refreshes and the preparation.

        Of such rounds all methods have equally many: their numbers can be compared.
        """
        plain = self.training * (self.training_rounds - self.rounds_with_pool)
        pooled = self.training_with_pool * self.rounds_with_pool
        synthesis = self.synthesis * self.refreshes
        return (plain + pooled + synthesis + self.preparation) / self.training_rounds


def device_cost(recipe: Recipe, shard: LabelledImages) -> DeviceCost:
    """Count the cost of a recipe for a device with this shard.

    Values of weights and pixels make no difference, so the first weights serve for all rounds, and
    the device's own synthetic images for the pool: a step draws as many from any pool.
    """
    method, settings = method_of(recipe), recipe.method
    before = settings.preparation_rounds
    work = LocalWork(recipe, before + 1, first_checkpoint(recipe).weights, shard, recipe.seed)
    rounds = range(before + 1, recipe.rounds + 1)
    refreshes = [t for t in rounds if settings.refreshes(t)]
    with_pool = recipe.rounds + 1 - refreshes[0] if refreshes else 0

    preparation = 0
    if before:
        prepare = replace(work, round_number=1)
        preparation = before * _count(lambda: method.train(prepare))
    remembered = method.train(work).memory
    if remembered:  # a typical round follows another one
        work = replace(work, memory=remembered)
    training = synthesis = training_with_pool = 0
    if with_pool < len(rounds):
        training = _count(lambda: method.train(work))
    if refreshes:
        outcomes = []
        synthesis = _count(lambda: outcomes.append(method.synthesise(work)))
        pooled = replace(work, pool=outcomes[0].batch.images)
        training_with_pool = _count(lambda: method.train(pooled))
    return DeviceCost(
        training=training,
        training_with_pool=training_with_pool,
        synthesis=synthesis,
        preparation=preparation,
        training_rounds=len(rounds),
        rounds_with_pool=with_pool,
        refreshes=len(refreshes),
    )


class _NoModules:
    """Replaces the counter's own tracking of modules.

    That hooks into every module, and fails where a gradient is taken with regard to a module's
    input, as for the CAM. The total needs none of it.
    """

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        pass

    def __exit__(self) -> None:
        pass


def _count(action: Callable[[], object]) -> int:
    counter: Any = FlopCounterMode(display=False)
    counter.mod_tracker = _NoModules()
    with counter:
        action()
    return int(counter.get_total_flops())
