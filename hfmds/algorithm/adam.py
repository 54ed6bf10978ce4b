"""Adam (Kingma and Ba, 2015), written out.

torch.optim loads torch's compiler when first used: 2 s and 150 MB that each device would pay.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_EPSILON = 1e-8


class Adam:
    """Adam's state for some tensors, which it changes in place."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self._tensors = list(tensors)
        self._learning_rate = learning_rate
        self._betas = betas
        self._means = [torch.zeros_like(t) for t in self._tensors]
        self._squares = [torch.zeros_like(t) for t in self._tensors]
        self._steps = 0

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of the loss."""
        self.apply(torch.autograd.grad(loss, self._tensors))

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor]) -> None:
        """One step with these gradients."""
        beta1, beta2 = self._betas
        self._steps += 1
        for x, mean, square, gradient in zip(
            self._tensors, self._means, self._squares, gradients, strict=True
        ):
            mean.lerp_(gradient, 1 - beta1)
            square.lerp_(gradient.square(), 1 - beta2)
            unbiased_mean = mean / (1 - beta1**self._steps)
            unbiased_square = square / (1 - beta2**self._steps)
            x -= self._learning_rate * unbiased_mean / (unbiased_square.sqrt() + _EPSILON)
