"""Gradients written out are those of torch, where that can be said of a single operator.

What needs ONNX is compared as a whole graph, in tests/plans/test_making.py.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from hfmds.plans.lowerings import lowerings

aten = torch.ops.aten


@pytest.mark.parametrize("values", [1, 2, 3])
def test_the_first_of_equal_values_has_the_gradient_of_a_maximum(values: int) -> None:
    table = lowerings(weights_learn=True)
    generator = torch.Generator().manual_seed(values)
    # So few values that windows have two, three and four equal ones, at all places.
    x = torch.randint(values, (3, 4, 12, 10), generator=generator).float().requires_grad_()
    grad = torch.randn(3, 4, 6, 5, generator=generator)
    pooled = F.max_pool2d(x, 2)
    (expected,) = torch.autograd.grad(pooled, x, grad)
    window = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    y, indices = table[aten.max_pool2d_with_indices.default](x.detach(), *window)
    assert torch.equal(y, pooled)
    backward = table[aten.max_pool2d_with_indices_backward.default]
    assert torch.equal(backward(grad, x.detach(), *window, indices), expected)
