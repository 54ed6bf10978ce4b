"""Steps of training, synthesis and evaluation by a plan's graphs.

The loops over them are in `hfmds.algorithm`, and the same for torch. Tensors that one step gives
to the next stay onnxruntime's, so weights are not copied at every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.engines.graphs import Graphs, array_of, number_of, scalar, tensor
from hfmds.algorithm.evaluation import CHUNK as EVALUATION_CHUNK
from hfmds.algorithm.local_work import LocalWork
from hfmds.algorithm.models.weight_groups import classifier_of
from hfmds.algorithm.pixels import normalise
from hfmds.algorithm.sampling import Indices
from hfmds.algorithm.synthesis import CHUNK as SYNTHESIS_CHUNK
from hfmds.algorithm.synthesis import Floats, SynthesisLosses
from hfmds.algorithm.training import sample_weights
from hfmds.domain.learning import Weights
from hfmds.domain.methods import METHODS, Hfmds, Method
from hfmds.errors import InvalidInput
from hfmds.plans.format import ANCHOR, BUFFER, MOMENTUM, NEXT, PARAMETER


class PlanTraining:
    """SGD on a method's loss (`hfmds.algorithm.training.TrainingSteps`)."""

    def __init__(self, graphs: Graphs, work: LocalWork) -> None:
        self._graphs, self._work = graphs, work
        settings, method = work.training, work.recipe.method
        require_plan_method(method)
        self._pool = work.pool if method.uses_alpha else None
        graphs.require_memory("train", settings.batch_size * (2 if self._pool else 1))
        weights = graphs.weights("train", classifier_of(work.weights))  # w_k, starting at w^t
        self._fixed = {
            "learning_rate": scalar(settings.learning_rate),
            "momentum": scalar(settings.momentum),
            "weight_decay": scalar(settings.weight_decay),
            **graphs.settings("train", method),
            **{ANCHOR + n: weights[PARAMETER + n] for n in graphs.names("train", ANCHOR)},
        }
        momentum = {  # starts at zero each round
            MOMENTUM + n: tensor(np.zeros_like(array_of(weights[PARAMETER + n])))
            for n in graphs.names("train", MOMENTUM)
        }
        self._state: dict[str, Any] = {**weights, **momentum}

    def step(self, rows: Indices, pool_rows: Indices | None) -> tuple[float, Floats | None]:
        batch = self.batch(rows, pool_rows)
        outputs = self._graphs.call("train", self._state, self._fixed, batch)
        self._state = {name: outputs[NEXT + name] for name in self._state}
        features = outputs.get("features")
        return number_of(outputs["loss"]), None if features is None else array_of(features)

    def batch(self, rows: Indices, pool_rows: Indices | None) -> dict[str, Any]:
        """Load the samples of one step, with the weight of each in the loss."""
        sets = [self._work.shard.take(rows)]
        if self._pool and pool_rows is not None:
            sets.append(self._pool.take(pool_rows))
        normalisation = self._work.recipe.normalisation
        images = np.concatenate([normalise(images.pixels, normalisation) for images in sets])
        synthetic = len(images) - len(rows)
        weights = sample_weights(len(rows), synthetic, self._work.training.alpha)
        return {
            "images": tensor(images),
            "labels": tensor(np.concatenate([images.labels for images in sets])),
            "sample_weights": tensor(weights),
        }

    def weights(self) -> Weights:
        return {name: self._weight(name) for name in classifier_of(self._work.weights)}

    def _weight(self, name: str) -> Floats:
        value = self._state.get(PARAMETER + name, self._state.get(BUFFER + name))
        return array_of(value).astype(np.float32)


def require_plan_method(method: Method) -> None:
    """Raise InvalidInput if devices need torch for this method."""
    if method.needs_torch:
        others = ", ".join(name for name, other in METHODS.items() if not other.needs_torch)
        raise InvalidInput(
            f"method {method.name} needs torch, and this device computes with onnxruntime; "
            "install hfmds-fl[torch] and set HFMDS_ENGINE to torch, or choose another method: "
            f"{others}"
        )


class PlanSynthesis:
    """What the global model computes in a synthesis (`hfmds.algorithm.synthesis`)."""

    def __init__(self, graphs: Graphs, work: LocalWork, settings: Hfmds) -> None:
        self._graphs, self._settings = graphs, settings
        self._weights = graphs.weights("synthesise", classifier_of(work.weights))
        graphs.require_memory("features", min(SYNTHESIS_CHUNK, len(work.shard)))
        graphs.require_memory("synthesise", settings.samples_per_device)

    def features(self, images: Floats) -> tuple[Floats, Floats]:
        outputs = self._graphs.call("features", self._weights, {"images": tensor(images)})
        return array_of(outputs["features"]), array_of(outputs["logits"])

    def matching(
        self, features: Floats, prototypes: Floats, labels: NDArray[np.int64]
    ) -> PlanMatching:
        targets = self._graphs.call(
            "targets",
            self._weights,
            {
                **self._graphs.settings("targets", self._settings),
                "features": tensor(features),
                "prototypes": tensor(prototypes),
                "labels": tensor(labels),
            },
        )
        fixed = {
            **self._weights,
            **self._graphs.settings("synthesise", self._settings),
            "labels": tensor(labels),
            "cam": targets["cam"],
            "target": targets["target"],
        }
        return PlanMatching(self._graphs, fixed, array_of(targets["logits"]))


class PlanMatching:
    """L_HFMDS of one synthetic batch."""

    def __init__(self, graphs: Graphs, fixed: Mapping[str, Any], hard_logits: Floats) -> None:
        self._graphs, self._fixed, self._hard_logits = graphs, fixed, hard_logits

    def hard_logits(self) -> Floats:
        return self._hard_logits

    def losses(self, images: Floats) -> SynthesisLosses:
        outputs = self._assess(images)
        l_hfm, l_c = (number_of(outputs[f"{of}_loss"]) for of in ("matching", "classification"))
        return SynthesisLosses(l_hfm, l_c, array_of(outputs["logits"]))

    def gradient_ratio(self, images: Floats) -> float:
        outputs = self._assess(images)
        of_matching = number_of(outputs["matching_gradient"])
        return of_matching / max(number_of(outputs["classification_gradient"]), 1e-12)

    def descent(self, noise: Floats) -> PlanDescent:
        return PlanDescent(self._graphs, self._fixed, noise)

    def _assess(self, images: Floats) -> dict[str, Any]:
        return self._graphs.call("assess", {"images": tensor(images)}, self._fixed)


class PlanDescent:
    """Synthetic images under optimisation by Adam."""

    def __init__(self, graphs: Graphs, fixed: Mapping[str, Any], noise: Floats) -> None:
        self._graphs, self._fixed = graphs, fixed
        zeros = np.zeros_like(noise)
        self._state = {
            "images": tensor(noise),
            "mean": tensor(zeros),
            "square": tensor(zeros),
        }
        self._steps = 0

    def step(self) -> float:
        self._steps += 1
        step = {"step": tensor(np.array(self._steps))}
        outputs = self._graphs.call("synthesise", self._state, self._fixed, step)
        self._state = {name: outputs[NEXT + name] for name in self._state}
        return number_of(outputs["loss"])

    def images(self) -> Floats:
        return array_of(self._state["images"])


class PlanEvaluation:
    """Evaluation of the task's model (`hfmds.algorithm.evaluation.EvaluationStep`)."""

    def __init__(self, graphs: Graphs, work: LocalWork) -> None:
        self._graphs = graphs
        self._weights = graphs.weights("evaluate", classifier_of(work.weights))
        graphs.require_memory("evaluate", min(EVALUATION_CHUNK, len(work.shard)))

    def __call__(self, images: Floats, labels: NDArray[np.int64]) -> tuple[float, int]:
        inputs = {"images": tensor(images), "labels": tensor(labels)}
        outputs = self._graphs.call("evaluate", self._weights, inputs)
        return number_of(outputs["loss"]), int(array_of(outputs["correct"]))
