"""The steps of a device, each as a pure function of tensors, in torch.

The loss terms are those of the torch engine (`hfmds.algorithm.torch_steps.losses`). Cross-entropy
and SGD are written out here, because ONNX lacks torch's kernels for them. This module imports no
ONNX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn
from torch.func import functional_call

from hfmds.algorithm.models.building import build_model
from hfmds.algorithm.models.split_model import SplitModel
from hfmds.algorithm.torch_steps.losses import (
    class_activation,
    hard_features,
    matching_loss,
    pooled_loss,
    proximal_term,
    relevance,
)
from hfmds.algorithm.torch_steps.optimisers import BETAS, adam_step
from hfmds.domain.recipe import ModelSpec
from hfmds.plans.format import ANCHOR, BATCH, BUFFER, MOMENTUM, NEXT, PARAMETER, TensorSpec

Tensors: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Step:
    """The inputs of a graph, and the function that it will compute."""

    inputs: tuple[TensorSpec, ...]
    compute: Callable[[Tensors], dict[str, Tensor]]

    @property
    def weights_learn(self) -> bool:
        """Whether the step needs gradients of the weights."""
        return any(spec.name.startswith(MOMENTUM) for spec in self.inputs)


class Steps:
    """The steps of one model, by the names of its plan's graphs."""

    def __init__(self, spec: ModelSpec, dtype: torch.dtype = torch.float32) -> None:
        self._network = _Split(build_model(spec)).to(dtype)
        classifier = self._network.split.classifier
        own = _persistent(self._network.split)
        of_classifier = {f"classifier.{name}": t for name, t in _persistent(classifier).items()}
        weights = _weights(own)

        with torch.no_grad():
            example = torch.zeros(2, *spec.image_shape, dtype=dtype)
            self.features = self._network.eval()(example)[0].shape[1]
        images = _floats("images", *spec.image_shape)
        labels = TensorSpec("labels", "int64", (BATCH,))
        cam, target = _floats("cam", self.features), _floats("target", self.features)
        state = tuple(_floats(name, *spec.image_shape) for name in ("mean", "square"))
        step = TensorSpec("step", "int64", ())
        training = (
            *weights,
            *_for_each_parameter(own, MOMENTUM),
            images,
            labels,
            _floats("sample_weights"),
            *_scalars("learning_rate", "momentum", "weight_decay"),
        )
        self.by_name: dict[str, Step] = {
            "train": Step(training, self._train),
            "train_proximal": Step(
                (*training, *_for_each_parameter(own, ANCHOR), *_scalars("mu")), self._train
            ),
            "features": Step((*weights, images), self._features),
            "targets": Step(
                (
                    *_weights(of_classifier),
                    _floats("features", self.features),
                    _floats("prototypes", self.features),
                    labels,
                    *_scalars("mu"),
                ),
                self._targets,
            ),
            "synthesise": Step(
                (
                    *weights,
                    images,
                    *state,
                    step,
                    labels,
                    cam,
                    target,
                    *_scalars("learning_rate", "matching_weight"),
                ),
                self._synthesise,
            ),
            "assess": Step((*weights, images, labels, cam, target), self._assess),
            "evaluate": Step((*weights, images, labels), self._evaluate),
        }

    @property
    def network(self) -> nn.Module:
        """The network of the steps."""
        return self._network.split

    # --- training -------------------------------------------------------------------------------

    def _train(self, inputs: Tensors) -> dict[str, Tensor]:
        parameters = {n: w.detach().requires_grad_() for n, w in _part(inputs, PARAMETER).items()}
        buffers = {name: b.clone() for name, b in _part(inputs, BUFFER).items()}  # BatchNorm writes
        self._network.train()
        features, logits = self._forward({**parameters, **buffers}, inputs["images"])
        loss = pooled_loss(_cross_entropies(logits, inputs["labels"]), inputs["sample_weights"])
        if anchors := _part(inputs, ANCHOR):
            anchor = [anchors[name] for name in parameters]  # w^t
            loss = loss + proximal_term(list(parameters.values()), anchor, inputs["mu"])
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        after: dict[str, Tensor] = {}
        for (name, w), gradient in zip(parameters.items(), gradients, strict=True):
            v = inputs["momentum"] * inputs[MOMENTUM + name] + (
                gradient + inputs["weight_decay"] * w
            )
            after[NEXT + PARAMETER + name] = w - inputs["learning_rate"] * v
            after[NEXT + MOMENTUM + name] = v
        after.update({NEXT + BUFFER + name: b for name, b in buffers.items()})
        return {**after, "loss": loss, "features": features}

    # --- synthesis ------------------------------------------------------------------------------

    def _features(self, inputs: Tensors) -> dict[str, Tensor]:
        features, logits = self._evaluated(inputs)
        return {"features": features, "logits": logits}

    def _targets(self, inputs: Tensors) -> dict[str, Tensor]:
        self._network.eval()
        classifier = _ClassifierCall(self._network.split.classifier, inputs)
        hard = hard_features(inputs["features"], inputs["prototypes"], inputs["mu"])
        cam = class_activation(classifier, hard, inputs["labels"])
        return {
            "hard_features": hard,
            "cam": cam,
            "target": relevance(hard, cam),
            "logits": classifier(hard),
        }

    def _synthesise(self, inputs: Tensors) -> dict[str, Tensor]:
        x = inputs["images"].detach().requires_grad_()
        l_hfm, l_c, _ = self._synthesis_losses(inputs, x)
        loss = inputs["matching_weight"] * l_hfm + l_c
        (gradient,) = torch.autograd.grad(loss, x)
        # In float64, because 1 - beta^t has few digits in the first steps. Not as a power of beta,
        # because the exporter would store the base as float32.
        steps = inputs["step"].double()
        unbias = [(1 - torch.exp(steps * math.log(beta))).to(x.dtype) for beta in BETAS]
        x, mean, square = adam_step(
            x, inputs["mean"], inputs["square"], gradient, inputs["learning_rate"], unbias
        )
        return {NEXT + "images": x, NEXT + "mean": mean, NEXT + "square": square, "loss": loss}

    def _assess(self, inputs: Tensors) -> dict[str, Tensor]:
        x = inputs["images"].detach().requires_grad_()
        l_hfm, l_c, logits = self._synthesis_losses(inputs, x)
        (of_matching,) = torch.autograd.grad(l_hfm, x, retain_graph=True)
        (of_classification,) = torch.autograd.grad(l_c, x)
        return {
            "matching_loss": l_hfm,
            "classification_loss": l_c,
            "logits": logits,
            "matching_gradient": of_matching.square().sum().sqrt(),
            "classification_gradient": of_classification.square().sum().sqrt(),
        }

    def _synthesis_losses(self, inputs: Tensors, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute L_HFM, L_C, and the logits."""
        features, logits = self._evaluated({**inputs, "images": x})
        l_c = _cross_entropies(logits, inputs["labels"]).mean()
        return matching_loss(features, inputs["cam"], inputs["target"]), l_c, logits

    # --- evaluation -----------------------------------------------------------------------------

    def _evaluate(self, inputs: Tensors) -> dict[str, Tensor]:
        _, logits = self._evaluated(inputs)
        return {
            "loss": _cross_entropies(logits, inputs["labels"]).sum(),
            "correct": (logits.argmax(dim=1) == inputs["labels"]).sum(),
        }

    # --- the network ----------------------------------------------------------------------------

    def _evaluated(self, inputs: Tensors) -> tuple[Tensor, Tensor]:
        self._network.eval()
        return self._forward(
            {**_part(inputs, PARAMETER), **_part(inputs, BUFFER)}, inputs["images"]
        )

    def _forward(self, weights: Tensors, images: Tensor) -> tuple[Tensor, Tensor]:
        named = {f"split.{name}": tensor for name, tensor in weights.items()}
        features, logits = functional_call(self._network, named, (images,))
        return features, logits


class _Split(nn.Module):
    """A model that returns features and logits at once."""

    def __init__(self, split: SplitModel) -> None:
        super().__init__()
        self.split = split

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.split.features(images)
        return features, self.split.classifier(features)


class _ClassifierCall(nn.Module):
    """A classifier with the weights among a graph's inputs."""

    def __init__(self, classifier: nn.Module, inputs: Tensors) -> None:
        super().__init__()
        self._classifier = [classifier]  # a list hides its own weights from this module
        prefix = "classifier."
        self._weights = {
            name.removeprefix(prefix): tensor
            for part in (PARAMETER, BUFFER)
            for name, tensor in _part(inputs, part).items()
        }

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = functional_call(self._classifier[0], self._weights, (features,))
        return logits


def _cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute each sample's cross-entropy by one-hot rows, whose gradient needs no scattering."""
    classes = torch.arange(logits.shape[1])
    chosen = (labels[:, None] == classes).to(logits.dtype)
    return -(F.log_softmax(logits, dim=1) * chosen).sum(dim=1)


def _persistent(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a module that devices send: parameters and buffers, by name."""
    return module.state_dict(keep_vars=True)


def _weights(tensors: Tensors) -> list[TensorSpec]:
    return [
        TensorSpec(
            (PARAMETER if isinstance(tensor, nn.Parameter) else BUFFER) + name,
            "float32" if tensor.is_floating_point() else "int64",
            tuple(tensor.shape),
        )
        for name, tensor in tensors.items()
    ]


def _for_each_parameter(tensors: Tensors, prefix: str) -> list[TensorSpec]:
    """Describe tensors of which there is one for each parameter."""
    return [
        TensorSpec(prefix + name, "float32", tuple(tensor.shape))
        for name, tensor in tensors.items()
        if isinstance(tensor, nn.Parameter)
    ]


def _floats(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, "float32", (BATCH, *shape))


def _scalars(*names: str) -> Iterable[TensorSpec]:
    return (TensorSpec(name, "float32", ()) for name in names)


def _part(inputs: Tensors, prefix: str) -> dict[str, Tensor]:
    """Return the tensors of one kind, by the names of the weights."""
    return {n.removeprefix(prefix): t for n, t in inputs.items() if n.startswith(prefix)}
