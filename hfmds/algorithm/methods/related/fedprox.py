"""FedProx (Li et al., "Federated Optimization in Heterogeneous Networks", 2020), equation (2).

loss = loss(real) + mu / 2 * |w - w^t|^2
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hfmds.algorithm.methods.fedavg import FedAvgMethod
from hfmds.algorithm.sampling import Indices
from hfmds.algorithm.training import LocalTraining, Loss
from hfmds.domain.methods import FedProx


class FedProxMethod(FedAvgMethod[FedProx]):
    """FedAvg with a rope: the proximal term."""

    def loss(self, training: LocalTraining) -> Loss:
        parameters = list(training.model.parameters())
        anchor = [p.detach().clone() for p in parameters]  # w^t
        on_real = super().loss(training)

        def loss(rows: Indices) -> Tensor:
            return on_real(rows) + self.settings.mu / 2 * squared_distance(parameters, anchor)

        return loss


def squared_distance(parameters: Sequence[Tensor], anchor: Sequence[Tensor]) -> Tensor:
    """|w - w^t|^2, over all parameters as one vector."""
    return torch.stack(
        [(p - a).square().sum() for p, a in zip(parameters, anchor, strict=True)]
    ).sum()
