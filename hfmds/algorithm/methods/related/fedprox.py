"""FedProx (Li et al., "Federated Optimization in Heterogeneous Networks", 2020), equation (2).

loss = loss(real) + mu / 2 * |w - w^t|^2
"""

from __future__ import annotations

from hfmds.algorithm.methods.fedavg import FedAvgMethod
from hfmds.algorithm.torch_steps.losses import proximal_term
from hfmds.algorithm.torch_steps.torch_training import Batch, BatchLoss, Loss, TorchTraining
from hfmds.domain.methods import FedProx


class FedProxMethod(FedAvgMethod[FedProx]):
    """FedAvg that pulls weights back to the global model, by the proximal term."""

    def loss(self, training: TorchTraining) -> Loss:
        parameters = list(training.model.parameters())
        anchor = [p.detach().clone() for p in parameters]  # w^t
        on_real = super().loss(training)

        def loss(batch: Batch) -> BatchLoss:
            value, z = on_real(batch)
            return BatchLoss(value + proximal_term(parameters, anchor, self.settings.mu), z)

        return loss
