"""The seam between a device's work and what computes it.

An engine takes and gives values of `hfmds.algorithm`, knows no network and keeps nothing between
calls: the same work gives the same result. It runs in a thread, calls `progress` after
every step, and lets whatever that raises pass: so a device drops work that is no longer wanted.
"""

from __future__ import annotations

from typing import Protocol

from edge_client.settings import EdgeSettings
from hfmds.algorithm.engine import LocalWork, Progress, Synthesis, TrainedModel
from hfmds.algorithm.types import Evaluation
from hfmds.errors import ConfigurationError


class Engine(Protocol):
    """Something that can train, synthesise and evaluate."""

    @property
    def name(self) -> str:
        """What the device tells the coordinator it computes with, e.g. "torch-cpu"."""

    def train(self, work: LocalWork, progress: Progress) -> TrainedModel:
        """ClientUpdate of Algorithm 1, by the recipe's method."""

    def synthesise(self, work: LocalWork, progress: Progress) -> Synthesis:
        """DataSynthesis of Algorithm 1, by the recipe's method."""

    def evaluate(self, work: LocalWork, progress: Progress) -> Evaluation:
        """How the task's model does on the device's own data."""


def open_engine(settings: EdgeSettings) -> Engine:
    """The engine the settings name; ConfigurationError if this machine cannot run it."""
    # Imported here: a device with another engine has no torch.
    try:
        from edge_client.torch_engine import TorchEngine
    except ImportError as error:
        raise ConfigurationError(
            f"HFMDS_ENGINE is {settings.engine}, but {error.name} is not installed; "
            "install hfmds-fl[torch]"
        ) from error
    return TorchEngine(settings.compute_device, settings.threads)
