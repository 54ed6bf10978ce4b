"""The reference engine: `hfmds.algorithm` in torch. No other edge module imports torch."""

from __future__ import annotations

import torch

from hfmds.algorithm.local_work import LocalWork, Progress, Synthesis, TrainedModel
from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.models.compute_device import find_compute_device
from hfmds.algorithm.torch_steps.torch_evaluation import evaluate_locally
from hfmds.domain.learning import Evaluation


class TorchEngine:
    """Computes with torch on the processor, on a CUDA GPU or on an Apple GPU."""

    needs_plan = False

    def __init__(
        self, compute_device: str = "cpu", threads: int = 1, *, mixed_precision: bool = False
    ) -> None:
        """With `mixed_precision`, training uses bfloat16 where torch considers it safe."""
        self._device = find_compute_device(compute_device, "HFMDS_COMPUTE_DEVICE")
        self._mixed_precision = mixed_precision
        torch.set_num_threads(threads)
        self.name = f"torch-{self._device}"

    def train(self, work: LocalWork, progress: Progress) -> TrainedModel:
        # The cache would keep using the weights of the first step.
        with torch.autocast(
            self._device, torch.bfloat16, enabled=self._mixed_precision, cache_enabled=False
        ):
            return method_of(work.recipe).train(work, progress, self._device)

    def synthesise(self, work: LocalWork, progress: Progress) -> Synthesis:
        # Always in float32: synthesis matches shares of features as small as 1e-6.
        return method_of(work.recipe).synthesise(work, progress, self._device)

    def evaluate(self, work: LocalWork, progress: Progress) -> Evaluation:
        return evaluate_locally(work, progress, self._device)
