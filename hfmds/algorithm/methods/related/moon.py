"""MOON (Li, He, Song, "Model-Contrastive Federated Learning", 2021), equations (3) and (4).

    loss = loss(real) + mu * l_con
    l_con = -log(e_glob / (e_glob + e_prev)),  e_i = exp(sim(z, z_i) / tau)

with sim the cosine, z of the model being trained, z_glob of w^t, and z_prev of the device's own
model at the end of its last round.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from hfmds.algorithm.local_work import Memory
from hfmds.algorithm.methods.fedavg import FedAvgMethod
from hfmds.algorithm.sampling import Indices
from hfmds.algorithm.training import LocalTraining, Loss
from hfmds.domain.learning import Weights
from hfmds.domain.methods import Moon


class MoonMethod(FedAvgMethod[Moon]):
    """FedAvg, with features drawn to the global model's and away from the last local one's."""

    def loss(self, training: LocalTraining) -> Loss:
        # A device's first round has no model to be contrasted with, so the term is left out. MOON's
        # own code does so in the run's first round; a device that it samples later for the first
        # time is contrasted with random weights there.
        if not training.work.memory:
            return super().loss(training)
        model = training.model
        global_model = training.network(training.work.weights).eval()
        previous_model = training.network(training.work.memory).eval()

        def loss(rows: Indices) -> Tensor:
            images, labels = training.batch(rows)
            # MOON puts a projection head between features and classifier, and compares its output.
            # Departure: the features of the common network are compared as they are, so that all
            # methods train the same one; MOON's own code can do this, too.
            z = model.features(images)
            with torch.no_grad():
                z_global = global_model.features(images)
                z_previous = previous_model.features(images)
            contrast = contrastive_loss(z, z_global, z_previous, self.settings.temperature)
            return F.cross_entropy(model.classifier(z), labels) + self.settings.mu * contrast

        return loss

    def remember(self, training: LocalTraining, weights: Weights) -> Memory:
        return weights


def contrastive_loss(z: Tensor, z_global: Tensor, z_previous: Tensor, temperature: float) -> Tensor:
    """l_con, averaged over samples."""
    similar = F.cosine_similarity(z, z_global, dim=1)
    dissimilar = F.cosine_similarity(z, z_previous, dim=1)
    logits = torch.stack([similar, dissimilar], dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.int64, device=z.device))
