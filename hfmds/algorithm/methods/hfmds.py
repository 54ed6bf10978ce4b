"""HFMDS-FL (Li et al., 2023), FMDS-FL and their ablations: training on a pool of matched features.

The loss is FedAvg's: with a pool it is equation (6). The synthesis is in
`hfmds.algorithm.synthesis`.
"""

from __future__ import annotations

from hfmds.algorithm.local_work import LocalWork, Progress, Synthesis, no_progress
from hfmds.algorithm.methods.fedavg import FedAvgMethod
from hfmds.algorithm.synthesis import synthesise
from hfmds.algorithm.torch_steps.torch_synthesis import TorchSynthesis
from hfmds.domain.methods import Hfmds


class HfmdsMethod(FedAvgMethod[Hfmds]):
    """Devices share images whose hard, class-relevant features match those of their own."""

    def synthesise(
        self, work: LocalWork, progress: Progress = no_progress, device: str = "cpu"
    ) -> Synthesis:
        steps = TorchSynthesis(work, self.settings, device)
        return synthesise(work, self.settings, steps, progress)
