from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hfmds.plans.graph_memory import memory_of


class Two(nn.Module):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = torch.cat([x, x, x], dim=1)  # lives till its square is there
        return wide.square().sum(dim=1) + weight.sum()


@pytest.mark.integration
def test_memory_is_that_of_what_lives_at_the_same_time() -> None:
    n = torch.export.Dim("n", min=1)
    program = torch.export.export(
        Two(), (torch.zeros(3, 10), torch.zeros(7)), dynamic_shapes=({0: n}, None)
    )
    # x, three times x and the square of that: 70 floats for each image, twice; the weights are 7.
    assert memory_of(program) == (4 * 7, 2 * 4 * 70)
