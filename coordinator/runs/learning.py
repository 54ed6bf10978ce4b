"""What the coordinator needs torch for, which is loaded when a run first asks for it.

A run of most methods goes on without, so that a coordinator is soon back after a crash, and one
that only averages has little in memory.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading

from hfmds.domain.learning import Checkpoint, Evaluation, LabelledImages, Weights
from hfmds.domain.recipe import Recipe
from hfmds.errors import ConfigurationError


class Learning:
    """First weights and evaluations; in as many threads as the operator gives."""

    def __init__(self, threads: int = 1) -> None:
        """ConfigurationError if torch is not there to be loaded."""
        if importlib.util.find_spec("torch") is None:
            raise ConfigurationError(
                "the coordinator needs torch for the first weights of a run, and it is not "
                "installed; install hfmds-fl[server,torch]"
            )
        self._threads = threads
        self._loading = threading.Lock()
        self._loaded = False

    def load(self) -> None:
        """Load torch, unless it is there; takes seconds."""
        with self._loading:
            if self._loaded:
                return
            is_new = "torch" not in sys.modules
            import torch

            import hfmds.algorithm.methods.method_registry  # noqa: F401  (in torch, as all below)

            torch.set_num_threads(self._threads)
            if is_new:
                gc.freeze()  # torch stays: the collector need not look at it again
            self._loaded = True

    def first_checkpoint(self, recipe: Recipe) -> Checkpoint:
        """Where a run begins: w^0, by the recipe's seed."""
        self.load()
        from hfmds.algorithm.methods.method_registry import first_checkpoint

        return first_checkpoint(recipe)

    def weights_bytes(self, recipe: Recipe) -> int:
        """The size of a run's weights, without making them; InvalidInput if none can be told."""
        self.load()
        from hfmds.algorithm.methods.method_registry import weights_bytes

        return weights_bytes(recipe)

    def evaluate(self, recipe: Recipe, weights: Weights, images: LabelledImages) -> Evaluation:
        """How a model does on these images."""
        self.load()
        from hfmds.algorithm.torch_steps.torch_evaluation import evaluate

        return evaluate(recipe.model, weights, recipe.normalisation, images)
