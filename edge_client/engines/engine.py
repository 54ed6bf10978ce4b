"""The seam between a device's work and what computes it.

An engine takes and gives values of `hfmds.algorithm`, knows no network and keeps nothing between
calls: the same work gives the same result. It runs in a thread, calls `progress` after
every step, and lets whatever that raises pass: so a device drops work that is no longer wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edge_client.settings import EdgeSettings
from hfmds.algorithm.local_work import LocalWork, Progress, Synthesis, TrainedModel
from hfmds.domain.learning import Evaluation
from hfmds.errors import ConfigurationError


class Engine(Protocol):
    """Something that can train, synthesise and evaluate."""

    @property
    def name(self) -> str:
        """What the device tells the coordinator it computes with, e.g. "torch-cpu"."""

    @property
    def needs_plan(self) -> bool:
        """Whether it computes by the run's plan, and each work must have one."""

    def train(self, work: LocalWork, progress: Progress) -> TrainedModel:
        """ClientUpdate of Algorithm 1, by the recipe's method."""

    def synthesise(self, work: LocalWork, progress: Progress) -> Synthesis:
        """DataSynthesis of Algorithm 1, by the recipe's method."""

    def evaluate(self, work: LocalWork, progress: Progress) -> Evaluation:
        """How the task's model does on the device's own data."""


def open_engine(settings: EdgeSettings, left_bytes: Callable[[], int] = lambda: 0) -> Engine:
    """The engine the settings name; ConfigurationError if this machine cannot run it.

    `left_bytes` says how much memory a task may use; 0: that is not known.
    """
    if settings.mixed_precision and settings.engine == "onnx":
        raise ConfigurationError(
            "HFMDS_MIXED_PRECISION is set, but a plan computes in float32 only; unset it, or set "
            "HFMDS_ENGINE to torch"
        )
    # Imported here: a device has one of them, and a device with onnxruntime has no torch.
    try:
        if settings.engine == "onnx":
            from edge_client.engines.onnx_engine import OnnxEngine

            return OnnxEngine(settings.compute_device, settings.threads, left_bytes)
        from edge_client.engines.torch_engine import TorchEngine

        return TorchEngine(
            settings.compute_device, settings.threads, mixed_precision=settings.mixed_precision
        )
    except ImportError as error:
        extra = "edge" if settings.engine == "onnx" else "torch"
        raise ConfigurationError(
            f"HFMDS_ENGINE is {settings.engine}, but {error.name} is not installed; "
            f"install hfmds-fl[{extra}]"
        ) from error
