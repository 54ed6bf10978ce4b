"""The steps of a device, each as a pure function of tensors, in torch.

The graphs use the losses of the torch engine: `FedAvgMethod.loss` of the run's method, and
`hfmds.algorithm.torch_steps.losses`. SGD and Adam are written out here. This module imports no
ONNX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn
from torch.func import functional_call

from hfmds.algorithm.methods.method_registry import loss_of
from hfmds.algorithm.models.building import build_model
from hfmds.algorithm.models.split_model import SplitModel
from hfmds.algorithm.torch_steps.losses import (
    class_activation,
    hard_features,
    relevance,
    synthesis_terms,
)
from hfmds.algorithm.torch_steps.optimisers import BETAS, adam_step
from hfmds.algorithm.torch_steps.torch_training import Batch, BatchLoss, LocalModel
from hfmds.domain.methods import Method
from hfmds.domain.recipe import ModelSpec
from hfmds.domain.validation import fields_of
from hfmds.errors import InvalidInput
from hfmds.plans.format import (
    ANCHOR,
    BATCH,
    BUFFER,
    MOMENTUM,
    NEXT,
    PARAMETER,
    SETTING,
    TensorSpec,
)

Tensors: TypeAlias = Mapping[str, Tensor]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Step:
    """A function that becomes a graph, and the inputs that it may use."""

    inputs: tuple[TensorSpec, ...]
    compute: Callable[[Tensors], dict[str, Tensor]]

    @property
    def weights_learn(self) -> bool:
        """Whether the step needs gradients of the weights."""
        return any(spec.name.startswith(MOMENTUM) for spec in self.inputs)


class Steps:
    """The steps of one model and method, by the names of their plan's graphs."""

    def __init__(
        self, spec: ModelSpec, method: type[Method], dtype: torch.dtype = torch.float32
    ) -> None:
        self._bound = _Bound(build_model(spec)).to(dtype)
        self._method = method
        own = self.network.state_dict(keep_vars=True)
        weights = _weights(own)

        with torch.no_grad():
            example = torch.zeros(2, *spec.image_shape, dtype=dtype)
            self.features = self._bound.model.eval().features(example).shape[1]
        images = _floats("images", *spec.image_shape)
        labels = TensorSpec("labels", "int64", (BATCH,))
        cam, target = _floats("cam", self.features), _floats("target", self.features)
        settings = _scalars(*(SETTING + name for name in _numbers(method)))
        self.by_name: dict[str, Step] = {
            "train": Step(
                (
                    *weights,
                    *_for_each_parameter(own, MOMENTUM),
                    images,
                    labels,
                    _floats("sample_weights"),
                    *_scalars("learning_rate", "momentum", "weight_decay"),
                    *_for_each_parameter(own, ANCHOR),
                    *settings,
                ),
                self._train,
            ),
            "features": Step((*weights, images), self._features),
            "targets": Step(
                (
                    *weights,
                    _floats("features", self.features),
                    _floats("prototypes", self.features),
                    labels,
                    *settings,
                ),
                self._targets,
            ),
            "synthesise": Step(
                (
                    *weights,
                    images,
                    *(_floats(name, *spec.image_shape) for name in ("mean", "square")),
                    TensorSpec("step", "int64", ()),
                    labels,
                    cam,
                    target,
                    *settings,
                ),
                self._synthesise,
            ),
            "assess": Step((*weights, images, labels, cam, target), self._assess),
            "evaluate": Step((*weights, images, labels), self._evaluate),
        }

    @property
    def method(self) -> type[Method]:
        """The method whose loss the steps compute."""
        return self._method

    @property
    def network(self) -> nn.Module:
        """The network of the steps."""
        return self._bound.model

    # --- training -------------------------------------------------------------------------------

    def _train(self, inputs: Tensors) -> dict[str, Tensor]:
        parameters = {n: w.detach().requires_grad_() for n, w in _part(inputs, PARAMETER).items()}
        buffers = {name: b.clone() for name, b in _part(inputs, BUFFER).items()}  # BatchNorm writes

        def method_loss(model: SplitModel) -> BatchLoss:
            local = LocalModel(model, lambda: [inputs[ANCHOR + name] for name in parameters])
            batch = Batch(inputs["images"], inputs["labels"], inputs["sample_weights"])
            return loss_of(self._method)(local, batch, _TracedSettings(self._method, inputs))

        self.network.train()
        loss, features = self._bound.call({**parameters, **buffers}, method_loss)
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        after: dict[str, Tensor] = {}
        for (name, w), gradient in zip(parameters.items(), gradients, strict=True):
            v = inputs["momentum"] * inputs[MOMENTUM + name] + (
                gradient + inputs["weight_decay"] * w
            )
            after[NEXT + PARAMETER + name] = w - inputs["learning_rate"] * v
            after[NEXT + MOMENTUM + name] = v
        after.update({NEXT + BUFFER + name: b for name, b in buffers.items()})
        after["loss"] = loss
        return after if features is None else {**after, "features": features}

    # --- synthesis ------------------------------------------------------------------------------

    def _features(self, inputs: Tensors) -> dict[str, Tensor]:
        def compute(model: SplitModel) -> dict[str, Tensor]:
            z = model.features(inputs["images"])
            return {"features": z, "logits": model.classifier(z)}

        return self._in_evaluation(inputs, compute)

    def _targets(self, inputs: Tensors) -> dict[str, Tensor]:
        def compute(model: SplitModel) -> dict[str, Tensor]:
            hard = hard_features(inputs["features"], inputs["prototypes"], inputs[SETTING + "mu"])
            cam = class_activation(model.classifier, hard, inputs["labels"])
            return {
                "hard_features": hard,
                "cam": cam,
                "target": relevance(hard, cam),
                "logits": model.classifier(hard),
            }

        return self._in_evaluation(inputs, compute)

    def _synthesise(self, inputs: Tensors) -> dict[str, Tensor]:
        x = inputs["images"].detach().requires_grad_()
        l_hfm, l_c, _ = self._synthesis_terms(inputs, x)
        loss = inputs[SETTING + "matching_weight"] * l_hfm + l_c
        (gradient,) = torch.autograd.grad(loss, x)
        # In float64, because 1 - beta^t has few digits in the first steps. Not as a power of beta,
        # because the exporter would store the base as float32.
        steps = inputs["step"].double()
        unbias = [(1 - torch.exp(steps * math.log(beta))).to(x.dtype) for beta in BETAS]
        rate = inputs[SETTING + "learning_rate"]
        x, mean, square = adam_step(x, inputs["mean"], inputs["square"], gradient, rate, unbias)
        return {NEXT + "images": x, NEXT + "mean": mean, NEXT + "square": square, "loss": loss}

    def _assess(self, inputs: Tensors) -> dict[str, Tensor]:
        x = inputs["images"].detach().requires_grad_()
        l_hfm, l_c, logits = self._synthesis_terms(inputs, x)
        (of_matching,) = torch.autograd.grad(l_hfm, x, retain_graph=True)
        (of_classification,) = torch.autograd.grad(l_c, x)
        return {
            "matching_loss": l_hfm,
            "classification_loss": l_c,
            "logits": logits,
            "matching_gradient": of_matching.square().sum().sqrt(),
            "classification_gradient": of_classification.square().sum().sqrt(),
        }

    def _synthesis_terms(self, inputs: Tensors, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def compute(model: SplitModel) -> tuple[Tensor, Tensor, Tensor]:
            return synthesis_terms(model, x, inputs["labels"], inputs["cam"], inputs["target"])

        return self._in_evaluation(inputs, compute)

    # --- evaluation -----------------------------------------------------------------------------

    def _evaluate(self, inputs: Tensors) -> dict[str, Tensor]:
        labels = inputs["labels"]
        logits = self._in_evaluation(inputs, lambda model: model(inputs["images"]))
        return {
            "loss": F.cross_entropy(logits, labels, reduction="sum"),
            "correct": (logits.argmax(dim=1) == labels).sum(),
        }

    def _in_evaluation(self, inputs: Tensors, compute: Callable[[SplitModel], R]) -> R:
        self.network.eval()
        return self._bound.call({**_part(inputs, PARAMETER), **_part(inputs, BUFFER)}, compute)


class _Bound(nn.Module):
    """A model that computes with other weights than its own: those among a graph's inputs."""

    def __init__(self, model: SplitModel) -> None:
        super().__init__()
        self.model = model

    def call(self, weights: Tensors, compute: Callable[[SplitModel], R]) -> R:
        """Return `compute(model)`, where the model has these weights."""
        named = {f"model.{name}": tensor for name, tensor in weights.items()}
        result: R = functional_call(self, named, (compute,))
        return result

    def forward(self, compute: Callable[[SplitModel], R]) -> R:
        return compute(self.model)


class _TracedSettings:
    """A method's settings among a graph's inputs, so that one plan serves all their values."""

    def __init__(self, method: type[Method], inputs: Tensors) -> None:
        self._method, self._inputs = method, inputs

    def __getattr__(self, name: str) -> Any:
        if name in _numbers(self._method):
            return self._inputs[SETTING + name]
        if name in fields_of(self._method):
            raise InvalidInput(
                f"the loss of {self._method.name} reads the setting {name!r}, and a plan takes "
                "only numbers; make it a number, or say needs_torch in the method's settings"
            )
        return getattr(self._method, name)


def _numbers(method: type[Method]) -> list[str]:
    """Name the settings that are numbers."""
    return [n for n, field in fields_of(method).items() if field.annotation in (int, float)]


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


def _scalars(*names: str) -> list[TensorSpec]:
    return [TensorSpec(name, "float32", ()) for name in names]


def _part(inputs: Tensors, prefix: str) -> dict[str, Tensor]:
    """Return the tensors of one kind, by the names of the weights."""
    return {n.removeprefix(prefix): t for n, t in inputs.items() if n.startswith(prefix)}
