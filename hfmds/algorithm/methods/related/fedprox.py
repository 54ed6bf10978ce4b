"""FedProx (Li et al., "Federated Optimization in Heterogeneous Networks", 2020), equation (2).

loss = loss(real) + mu / 2 * |w - w^t|^2
"""

from __future__ import annotations

from hfmds.algorithm.methods.fedavg import FedAvgMethod
from hfmds.algorithm.torch_steps.losses import proximal_term
from hfmds.algorithm.torch_steps.torch_training import Batch, BatchLoss, LocalModel
from hfmds.domain.methods import FedProx


class FedProxMethod(FedAvgMethod[FedProx]):
    """FedAvg that pulls weights back to the global model, by the proximal term."""

    @classmethod
    def loss(cls, local: LocalModel, batch: Batch, settings: FedProx) -> BatchLoss:
        on_real, z = super().loss(local, batch, settings)
        return BatchLoss(on_real + proximal_term(local.parameters, local.anchor, settings.mu), z)
