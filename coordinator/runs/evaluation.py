"""First weights and evaluations: the coordinator's work that needs torch.

Torch loads when a run first needs it. Most methods need it only for the first weights. So a killed
coordinator is soon back, and one that only averages needs little memory.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading

from hfmds.data.named_images import load_named_images
from hfmds.domain.learning import Checkpoint, Evaluation, LabelledImages, Weights
from hfmds.domain.recipe import Recipe
from hfmds.domain.runs import RunSpec
from hfmds.errors import ConfigurationError, InvalidInput


class Learning:
    """Makes first weights and evaluates models, in as many threads as the settings allow."""

    def __init__(self, threads: int = 1) -> None:
        """Raise ConfigurationError if torch is not installed."""
        if importlib.util.find_spec("torch") is None:
            raise ConfigurationError(
                "the coordinator needs torch for the first weights of a run, and it is not "
                "installed; install hfmds-fl[server,torch]"
            )
        self._threads = threads
        self._loading = threading.Lock()
        self._loaded = False

    def load(self) -> None:
        """Load torch unless it is loaded. This takes seconds."""
        with self._loading:
            if self._loaded:
                return
            is_new = "torch" not in sys.modules
            import torch

            import hfmds.algorithm.methods.method_registry  # noqa: F401  (imports torch)

            torch.set_num_threads(self._threads)
            if is_new:
                gc.freeze()  # torch stays: the collector need not look at it again
            self._loaded = True

    def first_checkpoint(self, recipe: Recipe) -> Checkpoint:
        """Make w^0 by the recipe's seed."""
        self.load()
        from hfmds.algorithm.methods.method_registry import first_checkpoint

        return first_checkpoint(recipe)

    def weights_bytes(self, recipe: Recipe) -> int:
        """Return the size of a run's weights without making them; InvalidInput if unknown."""
        self.load()
        from hfmds.algorithm.methods.method_registry import weights_bytes

        return weights_bytes(recipe)

    def evaluate(self, recipe: Recipe, weights: Weights, images: LabelledImages) -> Evaluation:
        """Evaluate a model on these images."""
        self.load()
        from hfmds.algorithm.torch_steps.torch_evaluation import evaluate

        return evaluate(recipe.model, weights, recipe.normalisation, images)


class HeldOut:
    """The coordinator's held-out set. Without a source, no model is evaluated."""

    def __init__(self, source: str | None, learning: Learning) -> None:
        """Load the source; raise ConfigurationError if that fails."""
        self.learning = learning
        name = "the held-out set (HFMDS_HELD_OUT)"
        self._images = load_named_images(source, name) if source else None

    def check(self, spec: RunSpec) -> None:
        """Refuse a run whose model does not fit the set, or that needs a set that is missing."""
        if self._images is not None:
            self._images.labelled_for(spec.recipe)
        elif spec.policy.early_stop and not spec.policy.evaluation.devices:
            raise InvalidInput(
                "early_stop is given, but the coordinator has no held-out set and no device is "
                "asked to evaluate; set evaluation.devices, or HFMDS_HELD_OUT at the coordinator"
            )

    def evaluate(self, recipe: Recipe, weights: Weights) -> Evaluation | None:
        """Evaluate a model on the set; None without a set."""
        if self._images is None:
            return None
        return self.learning.evaluate(recipe, weights, self._images.labelled_for(recipe))
