"""FedAvg (McMahan et al., 2017), and the seam that every other method fills in.

A method differs from FedAvg in one or more of these places:

    first_weights   what is learned besides the classifier
    loss            what a device minimises, in torch and in plans for devices without torch
    torch_loss      the same for losses that need more than `loss` receives; in torch only
    train           what a device trains, sends and keeps for its next round
    synthesise      what a device shares besides its weights
    aggregate       what the server does with the updates (`method_server`)

The same object serves a simulated device, a real device and the server. It keeps no state: what
must last is in the weights, in the device's memory or in the pool.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from hfmds.algorithm.local_work import (
    LocalWork,
    Progress,
    Synthesis,
    TrainedModel,
    no_progress,
)
from hfmds.algorithm.methods.method_server import MethodServer, Settings
from hfmds.algorithm.models.building import initial_weights, seeded
from hfmds.algorithm.seeds import derive_seed
from hfmds.algorithm.torch_steps.losses import pooled_loss
from hfmds.algorithm.torch_steps.torch_training import (
    Batch,
    BatchLoss,
    LocalModel,
    Loss,
    SgdSteps,
    TorchTraining,
)
from hfmds.algorithm.training import train
from hfmds.domain.learning import Weights
from hfmds.errors import InvalidInput


class FedAvgMethod(MethodServer[Settings]):
    """Local training, and the mean of the results."""

    def first_weights(self, seed: int) -> Weights:
        """Draw w^0. Weights that are not the classifier's have a "/" in their names."""
        return initial_weights(self.recipe.model, seed)

    def train(
        self, work: LocalWork, progress: Progress = no_progress, device: str = "cpu"
    ) -> TrainedModel:
        """Run ClientUpdate of Algorithm 1 on torch's `device`.

        Equal devices give equal results.
        """
        with seeded(derive_seed(work.seed, "network")):  # for networks that draw, by dropout
            training = TorchTraining(work, device)
            return train(work, SgdSteps(training, self.torch_loss(training)), progress)

    @classmethod
    def loss(cls, local: LocalModel, batch: Batch, settings: Settings) -> BatchLoss:
        """Compute the loss of a local step: equation (6), or cross-entropy if there is no pool.

        Plans are traced from this function, so it must be pure. In a trace, numbers of the settings
        are tensors: multiply by them, but neither compare them nor pass them as Python numbers.
        """
        z = local.features(batch.images)
        of_each = F.cross_entropy(local.classifier(z), batch.labels, reduction="none")
        return BatchLoss(pooled_loss(of_each, batch.sample_weights), z)

    def torch_loss(self, training: TorchTraining) -> Loss:
        """Make the loss of a device's round in torch.

        A method that overrides this also says `needs_torch` in its settings.
        """
        return lambda batch: self.loss(training.local, batch, self.settings)

    def synthesise(
        self, work: LocalWork, progress: Progress = no_progress, device: str = "cpu"
    ) -> Synthesis:
        """Run DataSynthesis of Algorithm 1, for methods with a pool."""
        raise InvalidInput(f"method {self.settings.name} shares no images: nothing to synthesise")
