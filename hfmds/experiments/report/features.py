"""The points of the t-SNE figure: real and synthetic images in the features of their model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from hfmds.algorithm.local_work import LocalWork
from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.models.building import model_with
from hfmds.algorithm.pixels import normalise
from hfmds.algorithm.pool import merge
from hfmds.algorithm.seeds import generator, task_seed
from hfmds.algorithm.simulation.local_fleet import LocalFleet
from hfmds.domain.learning import LabelledImages, Weights
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import Recipe
from hfmds.experiments.trials.loaded_data import LoadedData
from hfmds.experiments.trials.running import shards_of
from hfmds.experiments.trials.trial import Trial
from hfmds.experiments.trials.trial_folder import Record, Saved

_REAL_PER_CLASS = 60
_CHUNK = 256
_PERPLEXITY = 30.0


def tsne_panel(
    trial: Trial, data: LoadedData, final: Saved, mus: Sequence[float], classes: Sequence[int]
) -> Record:
    """Return real and synthetic images of these classes as points of a plane.

    For HFMDS-FL the synthesis is done again with the trial's last model for each of `mus`, so that
    only mu differs; for other methods the trial's last pool is taken as it is. On one thread, so
    that the points do not depend on how many cores there are.
    """
    with _one_thread():
        return _panel(trial, data, final, mus, classes)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def _panel(
    trial: Trial, data: LoadedData, final: Saved, mus: Sequence[float], classes: Sequence[int]
) -> Record:
    recipe, weights = trial.recipe, final.checkpoint.weights
    shards = shards_of(trial, data)
    random = generator(trial.seed, "tsne")
    real = _of_classes(_concatenate(list(shards.values())), classes, random, _REAL_PER_CLASS)
    sets: list[tuple[str, float | None, LabelledImages]] = [("real", None, real)]
    if isinstance(recipe.method, Hfmds):
        for mu in mus:
            images = _synthesise(recipe, replace(recipe.method, mu=mu), weights, shards)
            sets.append(("synthetic", mu, _of_classes(images, classes, random, None)))
    elif final.checkpoint.pool:
        fleet = LocalFleet(recipe, shards)
        fleet.restore(final.fleet)
        pool = fleet.pool_batch(final.checkpoint.pool).images
        sets.append(("synthetic", None, _of_classes(pool, classes, random, None)))
    points = _plane(_features(recipe, weights, [images for _, _, images in sets]))
    labels = np.concatenate([images.labels for _, _, images in sets])
    kinds = [(kind, mu) for kind, mu, images in sets for _ in range(len(images))]
    return {
        "points": [
            {"x": x, "y": y, "class": int(label), "kind": kind, "mu": mu}
            for (x, y), label, (kind, mu) in zip(points.tolist(), labels, kinds, strict=True)
        ]
    }


def chosen_classes(data: LoadedData, count: int, seed: int) -> list[int]:
    """Choose the classes to show at random: all of them would be illegible."""
    order = generator(seed, "tsne classes").permutation(data.dataset.classes)
    return sorted(order[:count].tolist())


def _synthesise(
    recipe: Recipe, method: Hfmds, weights: Weights, shards: dict[str, LabelledImages]
) -> LabelledImages:
    own = replace(recipe, method=method)
    last = recipe.rounds
    batches = {}
    for device_id, shard in shards.items():
        # The same seed for every mu: the same real images and the same noise.
        seed = task_seed(recipe.seed, "synthesise", last, device_id)
        work = LocalWork(own, last, weights, shard, seed)
        batches[device_id] = method_of(own).synthesise(work).batch
    return merge(batches).images


def _of_classes(
    images: LabelledImages,
    classes: Sequence[int],
    random: np.random.Generator,
    most: int | None,
) -> LabelledImages:
    own = [np.flatnonzero(images.labels == c) for c in classes]
    if most is not None:
        own = [np.sort(random.permutation(rows)[:most]) for rows in own]
    return images.take(np.concatenate(own))


def _concatenate(parts: Sequence[LabelledImages]) -> LabelledImages:
    return LabelledImages(
        np.concatenate([part.pixels for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )


@torch.no_grad()
def _features(
    recipe: Recipe, weights: Weights, sets: Sequence[LabelledImages]
) -> NDArray[np.float32]:
    model = model_with(recipe.model, weights).eval()
    pixels = normalise(np.concatenate([images.pixels for images in sets]), recipe.normalisation)
    chunks = [
        model.features(torch.from_numpy(pixels[start : start + _CHUNK]))
        for start in range(0, len(pixels), _CHUNK)
    ]
    features: NDArray[np.float32] = torch.cat(chunks).numpy()
    return features


def _plane(features: NDArray[np.float32]) -> NDArray[Any]:
    perplexity = min(_PERPLEXITY, (len(features) - 1) / 3)
    tsne = TSNE(init="pca", perplexity=perplexity, random_state=0)
    plane: NDArray[Any] = tsne.fit_transform(features.astype(np.float64))
    return plane.round(3)
