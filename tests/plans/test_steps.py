"""The steps that plans are made of are those of the torch engine."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.pixels import normalise, to_pixels
from hfmds.algorithm.prototypes import prototypes_at_refresh
from hfmds.algorithm.sampling import choose, epoch_batches, initial_noise
from hfmds.algorithm.seeds import generator
from hfmds.algorithm.torch_steps.torch_evaluation import evaluate
from hfmds.domain.learning import LabelledImages, Weights
from hfmds.domain.methods import METHODS, Hfmds, Method
from hfmds.domain.recipe import Recipe
from hfmds.plans.format import ANCHOR, GRAPHS, MOMENTUM, NEXT, PARAMETER, SETTING
from hfmds.plans.steps import Steps
from tests.algorithm import examples
from tests.algorithm.examples import HFMDS, RECIPE, SPEC, images, recipe_for, weights

SEED = 5
STEPS = {name: Steps(SPEC, METHODS[name]) for name in ("fedavg", "fedprox", "hfmds")}


def called(graph: str, method: str = "hfmds", **given: Any) -> dict[str, Tensor]:
    """What a step makes of values; of too many, those it takes."""
    step = STEPS[method].by_name[graph]
    tensors = {
        spec.name: torch.as_tensor(np.asarray(given[spec.name], spec.numpy_dtype))
        for spec in step.inputs
        if spec.name in given
    }
    return {name: tensor.detach() for name, tensor in step.compute(tensors).items()}


def parameters(given: Weights, prefix: str = PARAMETER) -> dict[str, Any]:
    return {prefix + name: given[name] for name in given}


def settings_of(method: Method) -> dict[str, Any]:
    return {SETTING + name: value for name, value in asdict(method).items()}


def test_there_is_a_step_for_every_graph() -> None:
    assert tuple(STEPS["hfmds"].by_name) == GRAPHS


def trained_by_steps(recipe: Recipe, shard: LabelledImages, pool: LabelledImages | None) -> Weights:
    """Local training as a device does it that has nothing but the steps."""
    settings = recipe.training
    start = weights()
    state: dict[str, Any] = parameters(start)
    state.update({MOMENTUM + name: np.zeros_like(start[name]) for name in start})
    real_order, synthetic_order = generator(SEED, "real"), generator(SEED, "synthetic")
    for _ in range(settings.local_epochs):
        for rows in epoch_batches(len(shard), settings.batch_size, real_order):
            real = shard.take(rows)
            pixels, labels, alpha = real.pixels, real.labels, 1.0
            if pool:
                drawn = pool.take(choose(len(pool), len(rows), synthetic_order))
                pixels = np.concatenate([pixels, drawn.pixels])
                labels, alpha = np.concatenate([labels, drawn.labels]), settings.alpha
            counts = np.full(len(labels), (1 - alpha) / len(rows))
            counts[: len(rows)] = alpha / len(rows)
            after = called(
                "train",
                recipe.method.name,
                **state,
                **settings_of(recipe.method),
                **parameters(start, ANCHOR),
                images=normalise(pixels, recipe.normalisation),
                labels=labels,
                sample_weights=counts,
                learning_rate=settings.learning_rate,
                momentum=settings.momentum,
                weight_decay=settings.weight_decay,
            )
            state = {n.removeprefix(NEXT): t for n, t in after.items() if n.startswith(NEXT)}
    return {name: state[PARAMETER + name].numpy() for name in start}


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "hfmds"])
@pytest.mark.parametrize("with_pool", [False, True])
def test_training_by_steps_is_that_of_the_torch_engine(method: str, with_pool: bool) -> None:
    recipe = recipe_for(method)
    pool = images(6, seed=1) if with_pool and recipe.method.uses_alpha else None
    shard = images(9)  # the last batch is smaller
    expected = method_of(recipe).train(examples.work(recipe, shard, pool=pool)).weights
    found = trained_by_steps(recipe, shard, pool)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=2e-6, err_msg=name)


def test_features_of_a_training_step_are_of_the_weights_before_it() -> None:
    start = weights()
    batch = normalise(images(4).pixels, RECIPE.normalisation)
    state = {**parameters(start), **{MOMENTUM + name: start[name] * 0 for name in start}}
    scalars = {"learning_rate": 0.5, "momentum": 0.9, "weight_decay": 0.1}
    counts = np.full(4, 0.25)
    after = called(
        "train", **state, **scalars, images=batch, labels=[0, 1, 2, 0], sample_weights=counts
    )
    before = called("features", **parameters(start), images=batch)
    torch.testing.assert_close(after["features"], before["features"])


def test_synthesis_by_steps_is_that_of_the_torch_engine() -> None:
    recipe, shard, given = HFMDS, images(8), parameters(weights())
    method: Any = recipe.method
    expected = method_of(recipe).synthesise(examples.work(recipe, shard))
    subset = choose(len(shard), method.samples_per_device, generator(SEED, "subset"))
    real = shard.take(subset)
    features = called("features", **given, images=normalise(shard.pixels, recipe.normalisation))
    prototypes = prototypes_at_refresh({}, features["features"].numpy(), shard.labels, method)
    target = called(
        "targets",
        **given,
        features=features["features"][torch.from_numpy(subset)],
        prototypes=np.stack([prototypes[c] for c in real.labels.tolist()]),
        labels=real.labels,
        **settings_of(method),
    )
    fixed = {**given, "labels": real.labels, "cam": target["cam"], "target": target["target"]}
    x: Any = initial_noise(real.pixels.shape, generator(SEED, "noise"))
    first = called("assess", **fixed, images=x)
    mean, square = np.zeros_like(x), np.zeros_like(x)
    for step in range(1, method.steps + 1):
        after = called(
            "synthesise",
            **fixed,
            images=x,
            mean=mean,
            square=square,
            step=step,
            **settings_of(method),
        )
        x, mean, square = (after[NEXT + name] for name in ("images", "mean", "square"))
    pixels = to_pixels(x.numpy(), recipe.normalisation)
    apart = np.abs(pixels.astype(int) - expected.batch.images.pixels)
    assert apart.max() <= 1  # rounded at the very edge

    last = called("assess", **fixed, images=normalise(pixels, recipe.normalisation))
    health = expected.health
    assert health is not None
    # Of float32's own making: features near zero have large gradients. In float64 it is 7.283.
    ratio = first["matching_gradient"] / first["classification_gradient"]
    assert ratio.item() == pytest.approx(health.gradient_ratio, rel=2e-3)
    assert last["matching_loss"].item() == pytest.approx(health.matching_loss, rel=1e-3)
    assert last["classification_loss"].item() == pytest.approx(health.classification_loss, rel=1e-3)
    right = (last["logits"].argmax(1).numpy() == real.labels).mean()
    assert right == health.accuracy
    hard = called("features", **given, images=normalise(real.pixels, recipe.normalisation))
    assert target["hard_features"].shape == hard["features"].shape
    assert target["logits"].shape == (len(real), SPEC.classes)


def test_evaluation_by_steps_is_that_of_the_torch_engine() -> None:
    held_out = images(7, seed=3)
    expected = evaluate(SPEC, weights(), RECIPE.normalisation, held_out)
    found = called(
        "evaluate",
        **parameters(weights()),
        images=normalise(held_out.pixels, RECIPE.normalisation),
        labels=held_out.labels,
    )
    assert found["correct"].item() == round(expected.accuracy * 7)
    assert found["loss"].item() == pytest.approx(expected.loss * 7, rel=1e-6)


def test_a_changed_recipe_is_a_change_of_scalars_only() -> None:
    other = replace(SPEC, classes=4)
    assert [s.name for s in Steps(other, Hfmds).by_name["train"].inputs] == [
        s.name for s in STEPS["hfmds"].by_name["train"].inputs
    ]
