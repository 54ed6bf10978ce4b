"""The engine without torch: the steps come as graphs in a plan, the loops over them are here.

Batches, noise and prototypes are drawn by the same functions as in `hfmds.algorithm.training` and
`hfmds.algorithm.synthesis`, in the same order; so from the same seed the two engines differ by no
more than the rounding of their sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.engines.graphs import (
    Graphs,
    array_of,
    give_back_memory,
    open_graphs,
    providers_for,
    scalar,
    tensor,
)
from hfmds.algorithm.finite_checks import (
    require_finite_images,
    require_finite_loss,
    require_finite_synthesis,
)
from hfmds.algorithm.leakage.measurement import measured
from hfmds.algorithm.local_work import LocalWork, Progress, Synthesis, SynthesisHealth, TrainedModel
from hfmds.algorithm.models.weight_groups import classifier_of
from hfmds.algorithm.pixels import normalise, to_pixels
from hfmds.algorithm.prototypes import (
    ClassMeans,
    prototypes_after_refresh,
    prototypes_after_training,
    prototypes_at_refresh,
)
from hfmds.algorithm.sampling import Indices, choose, epoch_batches, initial_noise
from hfmds.algorithm.seeds import generator
from hfmds.domain.learning import Evaluation, LabelledImages
from hfmds.domain.methods import FedAvg, FedProx, Hfmds
from hfmds.errors import InvalidInput
from hfmds.onnx_runtime import onnxruntime
from hfmds.plans.format import ANCHOR, BUFFER, MOMENTUM, NEXT, PARAMETER

_CHUNK = 256  # images at a time where no gradient is needed, to bound memory


class OnnxEngine:
    """onnxruntime on the processor, or on whatever else it can compute with here."""

    needs_plan = True

    def __init__(
        self,
        compute_device: str = "cpu",
        threads: int = 1,
        left_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`left_bytes` says how much memory a task may use; 0: that is not known."""
        self._providers = providers_for(compute_device, onnxruntime.get_available_providers())
        self._threads = threads
        self._left_bytes = left_bytes
        self._opened: tuple[Path, Graphs] | None = None  # the last plan: a run has but one
        self.name = f"onnx-{self._providers[0].removesuffix('ExecutionProvider').lower()}"

    def train(self, work: LocalWork, progress: Progress) -> TrainedModel:
        with _memory_given_back():
            return _train(self._graphs(work), work, progress)

    def synthesise(self, work: LocalWork, progress: Progress) -> Synthesis:
        with _memory_given_back():
            return _synthesise(self._graphs(work), work, progress)

    def evaluate(self, work: LocalWork, progress: Progress) -> Evaluation:
        with _memory_given_back():
            return _evaluate(self._graphs(work), work, progress)

    def _graphs(self, work: LocalWork) -> Graphs:
        if work.plan is None:
            raise InvalidInput(
                "the task has no plan, and without one the onnx engine cannot compute; the "
                "coordinator's log says why it made none; change the network, or install "
                "hfmds-fl[torch] and set HFMDS_ENGINE to torch"
            )
        if self._opened is None or self._opened[0] != work.plan:
            self._opened = None  # before the next, so that there are never two in memory
            graphs = open_graphs(work.plan, self._providers, self._threads, self._left_bytes)
            self._opened = work.plan, graphs
        graphs = self._opened[1]
        if graphs.model != work.recipe.model:
            raise InvalidInput(
                f"the plan is for {graphs.model}, the run's model is {work.recipe.model}; "
                "update the coordinator"
            )
        return graphs


@contextmanager
def _memory_given_back() -> Iterator[None]:
    """When the task inside is over, well or not, the next finds what it had of memory."""
    try:
        yield
    finally:
        give_back_memory()


# --- training -----------------------------------------------------------------------------------


def _train(graphs: Graphs, work: LocalWork, progress: Progress) -> TrainedModel:
    """ClientUpdate of Algorithm 1; `hfmds.algorithm.training.minimise` is the same in torch."""
    settings = work.recipe.training.in_round(work.round_number)
    method = work.recipe.method
    step_name, more = _loss_of(work)
    start = classifier_of(work.weights)
    weights = graphs.weights(step_name, start)  # w_k, starting at w^t
    fixed = {
        "learning_rate": scalar(settings.learning_rate),
        "momentum": scalar(settings.momentum),
        "weight_decay": scalar(settings.weight_decay),
        **more,
        **{ANCHOR + n: weights[PARAMETER + n] for n in graphs.names(step_name, ANCHOR)},
    }
    changing = {
        **weights,
        **{  # starts at zero each round
            MOMENTUM + n: tensor(np.zeros_like(array_of(weights[PARAMETER + n])))
            for n in graphs.names(step_name, MOMENTUM)
        },
    }
    pool = work.pool if method.uses_alpha else None
    batches = _Batches(work, pool)
    graphs.require_memory(step_name, settings.batch_size * (2 if pool else 1))

    looked_on = method if isinstance(method, Hfmds) and method.local_prototypes else None
    seen = ClassMeans()
    samples = len(work.shard)
    steps_per_epoch = math.ceil(samples / settings.batch_size)
    steps = steps_per_epoch * settings.local_epochs
    step, epoch_loss = 0, 0.0
    for _ in range(settings.local_epochs):
        epoch_loss = 0.0
        for rows in epoch_batches(samples, settings.batch_size, batches.real_order):
            found = graphs.call(step_name, changing, fixed, batches.tensors(rows))
            changing = {name: found[NEXT + name] for name in changing}
            step += 1
            epoch_loss += require_finite_loss(float(array_of(found["loss"])), step, steps)
            if looked_on:
                seen.add(array_of(found["features"])[: len(rows)], work.shard.labels[rows])
            progress(step, steps)
    trained = {name: _value_of(changing, name) for name in start}
    memory = prototypes_after_training(work.memory, seen, looked_on) if looked_on else {}
    return TrainedModel(trained, samples, epoch_loss / steps_per_epoch, memory)


def _loss_of(work: LocalWork) -> tuple[str, Mapping[str, Any]]:
    """The graph that has the method's loss, and what it takes besides a batch."""
    match work.recipe.method:
        case FedProx(mu):
            return "train_proximal", {"mu": scalar(mu)}
        case FedAvg() | Hfmds():
            return "train", {}
        case other:
            raise InvalidInput(
                f"method {other.name} needs torch, and this device computes with onnxruntime; "
                "install hfmds-fl[torch] and set HFMDS_ENGINE to torch, or choose fedavg, fedprox "
                "or hfmds"
            )


class _Batches:
    """The batches of one training, as `hfmds.algorithm.training.LocalTraining` draws them."""

    def __init__(self, work: LocalWork, pool: LabelledImages | None) -> None:
        self._shard, self._pool = work.shard, pool
        self._normalisation = work.recipe.normalisation
        self._alpha = work.recipe.training.alpha
        self.real_order = generator(work.seed, "real")
        self._synthetic_order = generator(work.seed, "synthetic")

    def tensors(self, rows: Indices) -> dict[str, Any]:
        """B real and, once there is a pool, B synthetic samples, with what each counts."""
        real = len(rows)
        images = normalise(self._shard.pixels[rows], self._normalisation)
        labels = self._shard.labels[rows]
        counts = np.full(real, 1 / real, np.float32)
        if self._pool:
            chosen = choose(len(self._pool), real, self._synthetic_order)
            made = normalise(self._pool.pixels[chosen], self._normalisation)
            images = np.concatenate([images, made])
            labels = np.concatenate([labels, self._pool.labels[chosen]])
            share = np.repeat(np.array([self._alpha, 1 - self._alpha]), real)
            counts = (share / real).astype(np.float32)
        return {
            "images": tensor(images),
            "labels": tensor(labels),
            "sample_weights": tensor(counts),
        }


def _value_of(tensors: Mapping[str, Any], name: str) -> NDArray[np.float32]:
    value = tensors.get(PARAMETER + name, tensors.get(BUFFER + name))
    return array_of(value).astype(np.float32)


# --- synthesis ----------------------------------------------------------------------------------


def _synthesise(graphs: Graphs, work: LocalWork, progress: Progress) -> Synthesis:
    """DataSynthesis of Algorithm 1; `hfmds.algorithm.synthesis.synthesise` is the same in torch."""
    settings = work.recipe.method
    if not isinstance(settings, Hfmds):
        _loss_of(work)  # says that it needs torch, if that is why
        raise InvalidInput(f"method {settings.name} shares no images: nothing to synthesise")
    shard, seed, by = work.shard, work.seed, work.recipe.normalisation
    weights = graphs.weights("synthesise", classifier_of(work.weights))
    graphs.require_memory("features", min(_CHUNK, len(shard)))
    subset = choose(len(shard), settings.samples_per_device, generator(seed, "subset"))
    graphs.require_memory("synthesise", len(subset))
    real = shard.take(subset)  # synthetic image i is matched with its image i

    features, logits = _features(graphs, weights, normalise(shard.pixels, by))
    prototypes = prototypes_at_refresh(work.memory, features, shard.labels, settings)
    labels = tensor(real.labels)
    aims = graphs.call(
        "targets",
        weights,
        {
            "features": tensor(features[subset]),
            "prototypes": tensor(np.stack([prototypes[c] for c in real.labels.tolist()])),
            "labels": labels,
            "mu": scalar(settings.mu),
        },
    )
    fixed = {
        **weights,
        "labels": labels,
        "cam": aims["cam"],
        "target": aims["target"],
        "learning_rate": scalar(settings.learning_rate),
        "matching_weight": scalar(settings.matching_weight),
    }

    noise = initial_noise(real.pixels.shape, generator(seed, "noise"))  # N(0, I)
    at_first = graphs.call("assess", {"images": tensor(noise)}, fixed)
    changing = {
        "images": tensor(noise),
        "mean": tensor(np.zeros_like(noise)),
        "square": tensor(np.zeros_like(noise)),
    }
    for step in range(1, settings.steps + 1):
        found = graphs.call("synthesise", changing, fixed, {"step": tensor(np.array(step))})
        changing = {name: found[NEXT + name] for name in changing}
        require_finite_synthesis(float(array_of(found["loss"])), step, settings.steps)
        progress(step, settings.steps)

    made = array_of(changing["images"])
    require_finite_images(made, settings.steps)
    pixels = to_pixels(made, by, work.recipe.pool.pixel_type)
    at_last = graphs.call("assess", {"images": tensor(normalise(pixels, by))}, fixed)
    gradients = (_number(at_first[f"{of}_gradient"]) for of in ("matching", "classification"))
    of_matching, of_classification = gradients
    health = SynthesisHealth(
        matching_loss=_number(at_last["matching_loss"]),
        classification_loss=_number(at_last["classification_loss"]),
        accuracy=float((array_of(at_last["logits"]).argmax(axis=1) == real.labels).mean()),
        real_margin=_margin(logits[subset], real.labels),
        hard_margin=_margin(array_of(aims["logits"]), real.labels),
        gradient_ratio=of_matching / max(of_classification, 1e-12),
    )
    batch = measured(LabelledImages(pixels, real.labels), real.pixels, shard.pixels)
    return Synthesis(batch, prototypes_after_refresh(prototypes, settings), health)


def _features(
    graphs: Graphs, weights: Mapping[str, Any], normalised: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Features and logits of all images."""
    found = [
        graphs.call("features", weights, {"images": tensor(normalised[i : i + _CHUNK])})
        for i in range(0, len(normalised), _CHUNK)
    ]
    features, logits = (
        np.concatenate([array_of(one[name]) for one in found]) for name in ("features", "logits")
    )
    return features, logits


def _margin(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    own = np.take_along_axis(logits, labels[:, None], axis=1)
    others = logits.copy()
    np.put_along_axis(others, labels[:, None], -np.inf, axis=1)
    return float((own[:, 0] - others.max(axis=1)).mean())


def _number(value: Any) -> float:
    return float(array_of(value))


# --- evaluation ---------------------------------------------------------------------------------


def _evaluate(graphs: Graphs, work: LocalWork, progress: Progress) -> Evaluation:
    """How the task's model does; `hfmds.algorithm.evaluation` is the same in torch."""
    shard = work.shard
    weights = graphs.weights("evaluate", classifier_of(work.weights))
    graphs.require_memory("evaluate", min(_CHUNK, len(shard)))
    loss, correct = 0.0, 0
    for start in range(0, len(shard), _CHUNK):
        pixels, labels = shard.pixels[start : start + _CHUNK], shard.labels[start : start + _CHUNK]
        images = tensor(normalise(pixels, work.recipe.normalisation))
        found = graphs.call("evaluate", weights, {"images": images, "labels": tensor(labels)})
        loss += _number(found["loss"])
        correct += int(array_of(found["correct"]))
        progress(min(start + _CHUNK, len(shard)), len(shard))
    return Evaluation(correct / len(shard), loss / len(shard), len(shard))
