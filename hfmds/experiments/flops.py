"""What a device computes per round, counted by torch while the product's own code runs.

Counted are the matrix products and convolutions of one device, forward and backward, two floating
point operations per multiply and add. Element-wise work (ReLU, norms, optimisers) is not counted,
and nothing of the server's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from hfmds.algorithm.convolution import plain_convolutions
from hfmds.algorithm.engine import LocalWork
from hfmds.algorithm.methods.registry import first_checkpoint, method_of
from hfmds.algorithm.methods.settings import Hfmds
from hfmds.algorithm.recipes import Recipe
from hfmds.algorithm.types import LabelledImages


@dataclass(frozen=True, slots=True)
class DeviceCost:
    """Floating point operations of one device."""

    training: float  # in a round, with a pool if the method has one
    synthesis: float  # at a refresh
    refresh_interval: float  # rounds that share one refresh
    preparation: float  # in all rounds before the classifier is trained
    training_rounds: int  # those that train the classifier, and share the preparation

    @property
    def per_round(self) -> float:
        """Of a typical round of the classifier, with its share of refreshes and preparation.

        Of such rounds all methods have equally many: their numbers can be compared.
        """
        synthesis = self.synthesis / self.refresh_interval
        return self.training + synthesis + self.preparation / self.training_rounds


def device_cost(recipe: Recipe, shard: LabelledImages) -> DeviceCost:
    """What the recipe costs a device with this shard.

    Values of weights and pixels make no difference, so the first weights serve for all rounds, and
    the device's own synthetic images for the pool: a step draws as many from any pool.
    """
    method, settings = method_of(recipe), recipe.method
    before = settings.preparation_rounds
    rounds = recipe.rounds - before
    work = LocalWork(recipe, before + 1, first_checkpoint(recipe).weights, shard, recipe.seed)

    preparation = 0
    if before:
        prepare = replace(work, round_number=1)
        preparation = before * _count(lambda: method.train(prepare))
    synthesis = 0
    if settings.samples_per_device:
        made = []
        synthesis = _count(lambda: made.append(method.synthesise(work)))
        work = replace(work, pool=made[0].batch.images)
    remembered = method.train(work).memory
    if remembered:  # a typical round has one before it
        work = replace(work, memory=remembered)
    return DeviceCost(
        training=_count(lambda: method.train(work)),
        synthesis=synthesis,
        # Others than HFMDS-FL make their pool once.
        refresh_interval=settings.every_rounds if isinstance(settings, Hfmds) else rounds,
        preparation=preparation,
        training_rounds=rounds,
    )


class _NoModules:
    """Takes the place of the counter's own way to tell modules apart.

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
    with counter, plain_convolutions():  # the network's, however they are computed
        action()
    return int(counter.get_total_flops())
