"""HFMDS-FL (Li et al., 2023), FMDS-FL and their ablations: training on a pool of matched features.

The synthesis itself, loss term by loss term, is in `hfmds.algorithm.synthesis`.
"""

from __future__ import annotations

from hfmds.algorithm.local_work import LocalWork, Memory, Progress, Synthesis
from hfmds.algorithm.methods.fedavg import FedAvgMethod
from hfmds.algorithm.methods.pooled import loss_with_pool
from hfmds.algorithm.prototypes import ClassMeans, prototypes_after_training
from hfmds.algorithm.synthesis import synthesise
from hfmds.algorithm.training import LocalTraining, Loss
from hfmds.domain.learning import Weights
from hfmds.domain.methods import Hfmds


class HfmdsMethod(FedAvgMethod[Hfmds]):
    """Devices share images whose hard, class-relevant features match those of their own."""

    def loss(self, training: LocalTraining) -> Loss:
        if self.settings.local_prototypes:
            training.seen = ClassMeans()
        return loss_with_pool(training)

    def remember(self, training: LocalTraining, weights: Weights) -> Memory:
        if training.seen is None:
            return {}
        return prototypes_after_training(training.work.memory, training.seen, self.settings)

    def synthesise(
        self, work: LocalWork, progress: Progress | None = None, device: str = "cpu"
    ) -> Synthesis:
        return synthesise(work, self.settings, progress, device)
