"""SGD with momentum, and Adam (Kingma and Ba, 2015), written out in torch.

torch.optim loads torch's compiler when first used: 2 s and 150 MB that each device would pay.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hfmds.domain.recipe import TrainingRecipe

BETAS = (0.9, 0.999)

_EPSILON = 1e-8


@torch.no_grad()
def sgd_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocity: Sequence[Tensor],
    settings: TrainingRecipe,
) -> None:
    """v <- momentum v + gradient + decay w;  w <- w - eta v, in place."""
    for w, gradient, v in zip(parameters, gradients, velocity, strict=True):
        v.mul_(settings.momentum).add_(gradient).add_(w, alpha=settings.weight_decay)
        w.sub_(v, alpha=settings.learning_rate)


class Adam:
    """Adam's state for tensors that it changes in place."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        learning_rate: float,
        betas: tuple[float, float] = BETAS,
    ) -> None:
        self._tensors = list(tensors)
        self._learning_rate = learning_rate
        self._betas = betas
        self._means = [torch.zeros_like(t) for t in self._tensors]
        self._squares = [torch.zeros_like(t) for t in self._tensors]
        self._steps = 0

    def step(self, loss: Tensor) -> None:
        """Take one step down the gradient of the loss."""
        self.apply(torch.autograd.grad(loss, self._tensors))

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor]) -> None:
        """Take one step with these gradients."""
        self._steps += 1
        unbias = tuple(1 - beta**self._steps for beta in self._betas)
        for i, (tensor, gradient) in enumerate(zip(self._tensors, gradients, strict=True)):
            x, self._means[i], self._squares[i] = adam_step(
                tensor,
                self._means[i],
                self._squares[i],
                gradient,
                self._learning_rate,
                unbias,
                self._betas,
            )
            tensor.copy_(x)


def adam_step(
    x: Tensor,
    mean: Tensor,
    square: Tensor,
    gradient: Tensor,
    learning_rate: float | Tensor,
    unbias: Sequence[float | Tensor],
    betas: tuple[float, float] = BETAS,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x and the running means of its gradient and of the squared gradient, after step t.

    `unbias` holds 1 - beta^t of both betas.
    """
    mean = mean.lerp(gradient, 1 - betas[0])
    square = square.lerp(gradient.square(), 1 - betas[1])
    unbiased_mean = mean / unbias[0]
    unbiased_square = square / unbias[1]
    x = x - learning_rate * unbiased_mean / (unbiased_square.sqrt() + _EPSILON)
    return x, mean, square
