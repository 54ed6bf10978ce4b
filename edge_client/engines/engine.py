"""The seam between a device's tasks and the library that computes them.

An engine takes and returns values of `hfmds.algorithm.local_work`. It keeps nothing between calls:
the same work gives the same result. It runs in a thread and calls `progress` after every step. An
exception from `progress` ends the work: so a device drops a task that the coordinator took back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edge_client.settings import EdgeSettings
from hfmds.algorithm.local_work import LocalWork, Progress, Synthesis, TrainedModel
from hfmds.domain.learning import Evaluation
from hfmds.errors import ConfigurationError


class Engine(Protocol):
    """Trains, synthesises and evaluates."""

    @property
    def name(self) -> str:
        """The engine's name in the device's profile, e.g. "torch-cpu"."""

    @property
    def needs_plan(self) -> bool:
        """Whether the engine computes by a plan, so that each work must have one."""

    def train(self, work: LocalWork, progress: Progress) -> TrainedModel:
        """Run ClientUpdate of Algorithm 1, by the recipe's method."""

    def synthesise(self, work: LocalWork, progress: Progress) -> Synthesis:
        """Run DataSynthesis of Algorithm 1, by the recipe's method."""

    def evaluate(self, work: LocalWork, progress: Progress) -> Evaluation:
        """Measure how the task's model does on the device's own data."""


def open_engine(settings: EdgeSettings, left_bytes: Callable[[], int] = lambda: 0) -> Engine:
    """Open the engine that the settings name.

    `left_bytes` tells how much memory a task may use; 0 means unknown.

    Raises ConfigurationError: this machine cannot run the engine.
    """
    if settings.mixed_precision and settings.engine == "onnx":
        raise ConfigurationError(
            "HFMDS_MIXED_PRECISION is set, but a plan computes in float32 only; unset it, or set "
            "HFMDS_ENGINE to torch"
        )
    # Imported here because a device has only one of them installed.
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
