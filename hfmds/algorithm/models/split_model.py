"""The interface of networks, and checks that a network follows it, in torch.

Feature matching needs to know where the extractor ends and the classifier begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from hfmds.domain.recipe import ModelSpec
from hfmds.errors import InvalidInput


class SplitModel(nn.Module, ABC):
    """A classifier f^d on top of a feature extractor f^e.

    Features are never negative, because feature matching reads `features * relu(CAM)` as a
    distribution.
    """

    classifier: nn.Module  # f^d(w^d; z) = q, the logits

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """Compute z = f^e(w^e; x), [n, features], of images [n, channels, height, width]."""

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits q."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


def require_split(model: object, name: str) -> None:
    """Refuse a model without extractor or classifier, or with weights that cannot be sent."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(
            f"the factory of {name!r} made a {type(model).__name__}; it must make a torch.nn.Module"
        )
    missing = []
    if not callable(getattr(model, "features", None)):
        missing.append("a method features(images)")
    if not isinstance(getattr(model, "classifier", None), nn.Module):
        missing.append("a submodule classifier")
    if missing:
        raise InvalidInput(
            f"{name!r} does not say where its extractor ends: {type(model).__name__} lacks "
            f"{' and '.join(missing)}; give it both, so that model(images) is "
            "classifier(features(images))"
        )
    for key, value in model.state_dict().items():
        if not isinstance(value, Tensor) or nn.parameter.is_lazy(value):
            raise InvalidInput(
                f"{name!r} has no tensor of known shape in {key!r}; lazy modules and extra state "
                "cannot be sent: take all sizes from the ModelSpec and keep state in buffers"
            )
        if "/" in key:  # marks weights of a method's other networks
            raise InvalidInput(f"{name!r} has a weight named {key!r}; name it without a slash")


def require_sound(model: SplitModel, spec: ModelSpec) -> None:
    """Refuse a network that misbehaves on two images; leave it in evaluation mode."""
    name = repr(spec.architecture)
    images = torch.randn(2, *spec.image_shape, generator=torch.Generator().manual_seed(0))
    model.eval()
    try:
        features = model.features(images)
        logits = model.classifier(features)
        directly = model(images)
        idle = _parameters_without_gradient(model, directly)
    except Exception as error:  # a network may raise anything
        raise InvalidInput(
            f"{name} fails on images of {list(spec.image_shape)} (channels, height, width): "
            f"{type(error).__name__}: {error}"
        ) from error
    if features.dim() != 2 or len(features) != 2:
        raise InvalidInput(
            f"the features of {name} for 2 images are {list(features.shape)}; they must be "
            "[2, features]: end the extractor with flatten(1) or a mean over positions"
        )
    if not bool((features >= 0).all()):
        raise InvalidInput(
            f"{name} has features down to {features.min().item():.3g}; feature matching reads them "
            "as shares, which cannot be negative: end the extractor with a ReLU"
        )
    if logits.shape != (2, spec.classes):
        raise InvalidInput(
            f"the classifier of {name} gives {list(logits.shape)} for 2 images; it must give "
            f"[2, {spec.classes}]: take the number of classes from the ModelSpec"
        )
    if directly.shape != logits.shape or not torch.allclose(directly, logits, 1e-4, 1e-5):
        raise InvalidInput(
            f"{name} gives other logits when called than classifier(features(images)), and "
            "evaluation would use other logits than training: do everything before the last "
            "layers in features"
        )
    if idle:
        raise InvalidInput(
            f"{name} has parameters that training cannot move: {', '.join(idle)}; "
            "leave out what the logits do not depend on, and make what is frozen a buffer"
        )


def _parameters_without_gradient(model: nn.Module, logits: Tensor) -> list[str]:
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(logits.sum(), list(learned.values()), allow_unused=True)
    moved = {name for name, g in zip(learned, gradients, strict=True) if g is not None}
    return [name for name, _ in model.named_parameters() if name not in moved]
