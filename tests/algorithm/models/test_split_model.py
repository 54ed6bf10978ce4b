from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hfmds.algorithm.models.split_model import SplitModel, require_sound, require_split
from hfmds.domain.recipe import ModelSpec
from hfmds.errors import InvalidInput

SPEC = ModelSpec("my-net", channels=2, height=4, width=6, classes=3)


class Flat(SplitModel):
    """The smallest network there is."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.hidden = nn.Linear(48, 5)
        self.classifier = nn.Linear(5, classes)

    def features(self, images: Tensor) -> Tensor:
        return torch.relu(self.hidden(images.flatten(1)))


class Undeclared(nn.Module):
    """Not a SplitModel, but split like one, with its extractor as a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.ReLU())
        self.classifier = nn.Linear(5, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


class WithoutRelu(Flat):
    def features(self, images: Tensor) -> Tensor:
        return self.hidden(images.flatten(1)) - 1


class WithPositions(Flat):
    """Features of each row of pixels; its classifier would even take them."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 5)

    def features(self, images: Tensor) -> Tensor:
        return torch.relu(self.hidden(images))


class OneForAll(Flat):
    def features(self, images: Tensor) -> Tensor:
        return super().features(images).mean(dim=0, keepdim=True)


class AnotherForward(Flat):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * 2


class WithoutForward(Undeclared):
    forward = nn.Module.forward


class WithAnotherHead(Flat):
    def __init__(self) -> None:
        super().__init__()
        self.auxiliary = nn.Linear(5, 3)


def frozen() -> Flat:
    model = Flat()
    model.hidden.requires_grad_(False)
    return model


@pytest.mark.parametrize("make", [Flat, Undeclared])
def test_a_network_that_is_split_is_taken(make: Callable[[], Any]):
    require_split(make(), "my-net")
    require_sound(make(), SPEC)


class WithClassifierFunction(Flat):
    def __init__(self) -> None:
        super().__init__()
        del self.classifier
        self.classifier = lambda z: z  # type: ignore[assignment]


class WithSlash(Flat):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({"a/b": nn.Linear(5, 5)})


class WithExtraState(Flat):
    def get_extra_state(self) -> dict[str, int]:
        return {"epoch": 3}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({}, r"factory of 'my-net' made a dict; it must make a torch.nn.Module"),
        (
            nn.Linear(2, 3),
            r"'my-net' .*: Linear lacks a method features\(images\) and a submodule classifier; ",
        ),
        (WithClassifierFunction(), r"WithClassifierFunction lacks a submodule classifier; give"),
        (WithSlash(), r"'my-net' has a weight named 'blocks.a/b.weight'; name it without a slash"),
        (WithExtraState(), r"'my-net' has no tensor of known shape in '_extra_state'; .* buffers"),
    ],
)
def test_what_is_not_split_is_refused_by_what_it_lacks(model: object, message: str):
    with pytest.raises(InvalidInput, match=message):
        require_split(model, "my-net")


def test_lazy_modules_are_refused():
    lazy = Undeclared()
    lazy.features = nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.ReLU())
    with pytest.raises(InvalidInput, match=r"'features.1.weight'"):
        require_split(lazy, "my-net")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (WithoutRelu(), r"'my-net' has features down to -\d.*: end the extractor with a ReLU"),
        (WithPositions(), r"for 2 images are \[2, 2, 4, 5\]; .*: end the extractor with flatten"),
        (OneForAll(), r"for 2 images are \[1, 5\]; they must be \[2, features\]"),
        (Flat(classes=4), r"gives \[2, 4\] for 2 images; it must give \[2, 3\]: take the number"),
        (AnotherForward(), r"'my-net' gives other logits when called"),
        (WithAnotherHead(), r"cannot move: auxiliary.weight, auxiliary.bias; leave out what"),
        (frozen(), r"cannot move: hidden.weight, hidden.bias; .* make what is frozen a buffer"),
        (WithoutForward(), r"fails on images of \[2, 4, 6\] .*: NotImplementedError"),
        (Flat().double(), r"fails on images of \[2, 4, 6\] .*: RuntimeError: .*dtype"),
    ],
)
def test_a_network_that_cannot_be_used_is_refused_with_the_remedy(model: Any, message: str):
    with pytest.raises(InvalidInput, match=message):
        require_sound(model, SPEC)


def test_features_that_are_not_numbers_are_refused():
    model = Flat()
    nn.init.constant_(model.hidden.bias, float("nan"))
    with pytest.raises(InvalidInput, match="features down to nan"):
        require_sound(model, SPEC)
