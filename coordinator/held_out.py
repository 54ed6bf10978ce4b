"""The coordinator's held-out set, and how a model does on it."""

from __future__ import annotations

from functools import lru_cache

import torch

from hfmds.algorithm.evaluation import evaluate
from hfmds.algorithm.types import Evaluation, LabelledImages, Recipe, Weights
from hfmds.data.sources import load_images


class HeldOut:
    """Evaluates models; without a source it knows nothing and says so."""

    def __init__(self, source: str | None, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self._source = source
        self._load = lru_cache(maxsize=4)(load_images)  # by source and class names

    def check(self, recipe: Recipe) -> None:
        """Refuse a recipe whose model does not fit the set."""
        self._images(recipe)

    def evaluate(self, recipe: Recipe, weights: Weights) -> Evaluation | None:
        """Accuracy and loss; None without a set."""
        images = self._images(recipe)
        if images is None:
            return None
        return evaluate(recipe.model, weights, recipe.normalisation, images)

    def _images(self, recipe: Recipe) -> LabelledImages | None:
        if self._source is None:
            return None
        images = self._load(self._source, recipe.class_names)
        images.require_fit(recipe.model, f"the held-out set {self._source} (HFMDS_HELD_OUT)")
        return images
