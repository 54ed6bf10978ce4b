"""FedAvg (McMahan et al., 2017), and with it the seam that every other method fills in.

A method is what it does differently from FedAvg in one or more of these places:

    first_weights   what is learned besides the classifier
    loss            what a device minimises
    remember        what a device keeps for its next round
    synthesise      what a device shares besides its weights
    aggregate       what the server does with the updates (`server`)

The same object serves a simulated device, a real one and the server. It keeps no state: whatever
must last is in the weights, in the device's memory or in the pool.
"""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from hfmds.algorithm.local_work import LocalWork, Memory, Progress, Synthesis, TrainedModel
from hfmds.algorithm.methods.method_server import MethodServer, Settings
from hfmds.algorithm.models.building import initial_weights, seeded, weights_of
from hfmds.algorithm.sampling import Indices
from hfmds.algorithm.seeds import derive_seed
from hfmds.algorithm.training import LocalTraining, Loss, minimise
from hfmds.domain.learning import Weights
from hfmds.errors import InvalidInput


class FedAvgMethod(MethodServer[Settings]):
    """Local training on own data, and the mean."""

    def first_weights(self, seed: int) -> Weights:
        """w^0. Names of what is not the classifier's have a "/" in them."""
        return initial_weights(self.recipe.model, seed)

    def train(
        self, work: LocalWork, progress: Progress | None = None, device: str = "cpu"
    ) -> TrainedModel:
        """ClientUpdate of Algorithm 1. `device` is torch's: equal results on equal ones only."""
        work = replace(work, recipe=work.recipe.in_round(work.round_number))
        with seeded(derive_seed(work.seed, "network")):  # for networks that draw, by dropout
            training = LocalTraining(work, device)
            loss = minimise(training, self.loss(training), progress)
        weights = weights_of(training.model)
        return TrainedModel(weights, len(work.shard), loss, self.remember(training, weights))

    def loss(self, training: LocalTraining) -> Loss:
        """The loss of a local step, given the training it is part of."""

        def loss(rows: Indices) -> Tensor:
            images, labels = training.batch(rows)
            return F.cross_entropy(training.model(images), labels)

        return loss

    def remember(self, training: LocalTraining, weights: Weights) -> Memory:
        """What a device keeps of its training, which ended with these weights."""
        return {}

    def synthesise(
        self, work: LocalWork, progress: Progress | None = None, device: str = "cpu"
    ) -> Synthesis:
        """DataSynthesis of Algorithm 1, for methods with a pool."""
        raise InvalidInput(f"method {self.settings.name} shares no images: nothing to synthesise")
