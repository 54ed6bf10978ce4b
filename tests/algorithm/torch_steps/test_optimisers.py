from __future__ import annotations

import math

import pytest
import torch

from hfmds.algorithm.torch_steps.optimisers import Adam, sgd_step
from hfmds.domain.recipe import TrainingRecipe


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.999)])
def test_agrees_with_torchs_on_several_tensors(betas: tuple[float, float]):
    ours = [torch.ones(3), torch.full((2, 2), -1.0)]
    theirs = [t.clone().requires_grad_() for t in ours]
    adam = Adam(ours, 0.1, betas)
    reference = torch.optim.Adam(theirs, lr=0.1, betas=betas)
    for step in range(1, 8):
        # Of very different size, changing its sign, and so small that epsilon counts.
        gradients = [
            torch.tensor([1.0, -0.01 * step, 1e-9]) * step,
            torch.full((2, 2), 50.0 * (-1) ** step),
        ]
        adam.apply(gradients)
        for tensor, gradient in zip(theirs, gradients, strict=True):
            tensor.grad = gradient
        reference.step()
        for own, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(own, expected.detach(), rtol=1e-5, atol=1e-6)


def test_two_steps_written_out():
    x = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    adam = Adam([x], learning_rate=0.3)
    value, mean, square = 2.0, 0.0, 0.0
    for t in (1, 2):
        gradient = 3 * value**2  # of x^3
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        value -= 0.3 * (mean / (1 - 0.9**t)) / (math.sqrt(square / (1 - 0.999**t)) + 1e-8)
        adam.step(x.pow(3).sum())
        assert x.item() == pytest.approx(value, rel=1e-12)


def test_sgd_agrees_with_torchs_in_every_memory_layout():
    settings = TrainingRecipe(learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    ours = [torch.ones(3), torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)]
    theirs = [t.clone().requires_grad_() for t in ours]
    velocity = [torch.zeros_like(t) for t in ours]
    reference = torch.optim.SGD(theirs, lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(5):
        gradients = [torch.randn(t.shape) for t in ours]  # of torch's default layout
        sgd_step(ours, gradients, velocity, settings)
        for tensor, gradient in zip(theirs, gradients, strict=True):
            tensor.grad = gradient
        reference.step()
    for own, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, expected.detach(), rtol=1e-6, atol=1e-6)
