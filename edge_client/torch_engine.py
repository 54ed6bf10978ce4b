"""The reference engine: `hfmds.algorithm` in torch. The only edge module with torch."""

from __future__ import annotations

import torch

from hfmds.algorithm.engine import LocalWork, Progress, Synthesis, TrainedModel
from hfmds.algorithm.evaluation import evaluate_locally
from hfmds.algorithm.methods.registry import method_of
from hfmds.algorithm.types import Evaluation
from hfmds.errors import ConfigurationError


class TorchEngine:
    """Torch on the processor or on a CUDA GPU."""

    needs_plan = False

    def __init__(self, compute_device: str = "cpu", threads: int = 1) -> None:
        has_gpu = torch.cuda.is_available()
        if compute_device == "cuda" and not has_gpu:
            raise ConfigurationError(
                "HFMDS_COMPUTE_DEVICE is cuda, but this machine has no CUDA GPU that torch can "
                "use; set it to cpu or auto"
            )
        torch.set_num_threads(threads)
        self._device = "cuda" if has_gpu and compute_device != "cpu" else "cpu"
        self.name = f"torch-{self._device}"

    def train(self, work: LocalWork, progress: Progress) -> TrainedModel:
        return method_of(work.recipe).train(work, progress, self._device)

    def synthesise(self, work: LocalWork, progress: Progress) -> Synthesis:
        return method_of(work.recipe).synthesise(work, progress, self._device)

    def evaluate(self, work: LocalWork, progress: Progress) -> Evaluation:
        return evaluate_locally(work, progress, self._device)
