"""MOON (Li, He, Song, "Model-Contrastive Federated Learning", 2021), equations (3) and (4).

    loss = loss(real) + mu * l_con
    l_con = -log(e_glob / (e_glob + e_prev)),  e_i = exp(sim(z, z_i) / tau)

with sim the cosine, z of the model being trained, z_glob of w^t, and z_prev of the device's own
model at the end of its last round.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from hfmds.algorithm.local_work import LocalWork, Progress, TrainedModel, no_progress
from hfmds.algorithm.methods.fedavg import FedAvgMethod
from hfmds.algorithm.torch_steps.torch_training import Batch, BatchLoss, Loss, TorchTraining
from hfmds.domain.methods import Moon


class MoonMethod(FedAvgMethod[Moon]):
    """FedAvg that draws features to the global model's and away from the last local model's."""

    def train(
        self, work: LocalWork, progress: Progress = no_progress, device: str = "cpu"
    ) -> TrainedModel:
        trained = super().train(work, progress, device)
        return replace(trained, memory=trained.weights)  # z_prev of the next round is by them

    def torch_loss(self, training: TorchTraining) -> Loss:
        # Departure: a device's first round has no previous model, so the term is left out. MOON's
        # own code does this in the run's first round only. Devices that it samples later for the
        # first time are contrasted with random weights.
        if not training.work.memory:
            return super().torch_loss(training)
        model = training.model
        global_model = training.network(training.work.weights).eval()
        previous_model = training.network(training.work.memory).eval()

        def loss(batch: Batch) -> BatchLoss:
            # Departure: MOON compares the output of a projection head between features and
            # classifier. Here the features are compared as they are, so that all methods train
            # the same network. MOON's own code offers this, too.
            z = model.features(batch.images)
            with torch.no_grad():
                z_global = global_model.features(batch.images)
                z_previous = previous_model.features(batch.images)
            contrast = contrastive_loss(z, z_global, z_previous, self.settings.temperature)
            on_real = F.cross_entropy(model.classifier(z), batch.labels)
            return BatchLoss(on_real + self.settings.mu * contrast, z)

        return loss


def contrastive_loss(z: Tensor, z_global: Tensor, z_previous: Tensor, temperature: float) -> Tensor:
    """l_con: the mean over samples."""
    similar = F.cosine_similarity(z, z_global, dim=1)
    dissimilar = F.cosine_similarity(z, z_previous, dim=1)
    logits = torch.stack([similar, dissimilar], dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.int64, device=z.device))
