"""The coordinator's held-out set, and how a model does on it."""

from __future__ import annotations

from coordinator.runs.learning import Learning
from hfmds.data.named_images import load_named_images
from hfmds.domain.learning import Evaluation, Weights
from hfmds.domain.recipe import Recipe
from hfmds.domain.runs import RunSpec
from hfmds.errors import InvalidInput


class HeldOut:
    """Evaluates models; without a source it knows nothing and says so."""

    def __init__(self, source: str | None, learning: Learning) -> None:
        """Load the source; ConfigurationError if it cannot be used."""
        self.learning = learning
        what = "the held-out set (HFMDS_HELD_OUT)"
        self._images = load_named_images(source, what) if source else None

    def check(self, spec: RunSpec) -> None:
        """Refuse a run whose model does not fit the set, or that needs one where there is none."""
        if self._images is not None:
            self._images.labelled_for(spec.recipe)
        elif spec.policy.early_stop and not spec.policy.evaluation.devices:
            raise InvalidInput(
                "early_stop is given, but the coordinator has no held-out set and no device is "
                "asked to evaluate; set evaluation.devices, or HFMDS_HELD_OUT at the coordinator"
            )

    def evaluate(self, recipe: Recipe, weights: Weights) -> Evaluation | None:
        """Accuracy and loss; None without a set."""
        if self._images is None:
            return None
        return self.learning.evaluate(recipe, weights, self._images.labelled_for(recipe))
