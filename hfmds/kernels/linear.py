"""Large linear layers for small batches, for networks that compute on a processor. In torch.

x W^T of few images x is bound by how fast W is read. Asked for like that, the processor's library
reads it column by column; asked for (W x^T)^T, row by row, as W lies in memory. The paper's layer
of 1600 -> 512 with ten images on one core (AVX-512): 0.26 ms, plainly 0.46. Gradients are the same
products either way.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Outside of these, either way takes as long, or the plain one less.
_LEAST_WEIGHTS = 2**19
_LEAST_ROWS, _MOST_ROWS = 8, 64


class RowWiseLinear(nn.Linear):
    """A linear layer of the same weights that reads them in their order where that pays."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # torch's name
        small = input.dim() == 2 and _LEAST_ROWS <= len(input) <= _MOST_ROWS
        if not small or self.weight.numel() < _LEAST_WEIGHTS:
            return super().forward(input)
        if self.bias is None:
            return torch.mm(self.weight, input.t()).t()
        return torch.addmm(self.bias[:, None], self.weight, input.t()).t()


def row_wise(model: nn.Module) -> None:
    """Let a model on the processor read its large layers so; its weights stay its own."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = RowWiseLinear
