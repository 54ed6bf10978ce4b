"""An experiment as it is to be run: every arm under every split, with every seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hfmds.errors import ConfigurationError
from hfmds.experiments.vocabulary import Settings, Value, nearest

REPORTS = ("accuracy", "cost", "convergence", "tsne")
"""What the page of an experiment begins with."""

MEASURES = ("accuracy", "psnr", "gflops")
"""Of what the paper has numbers."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One setting that is varied."""

    setting: str
    label: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Tsne:
    """What the t-SNE figure shows."""

    panels: tuple[str, ...]  # arms
    mu: tuple[float, ...]  # for HFMDS-FL
    classes: int


@dataclass(frozen=True, slots=True)
class PaperNumber:
    """A number of the paper, with its deviation if the paper has one."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """What one command runs: every arm under every split, for every swept value and seed."""

    name: str
    size: str
    title: str
    paper: str
    about: str
    report: str
    settings: Settings
    splits: dict[str, Settings]
    arms: dict[str, Settings]
    controls: tuple[str, ...]
    sweep: Sweep | None
    seeds: tuple[int, ...]
    last_rounds: int
    # By measure, then arm, then split; a number that is for all splits has the split "".
    paper_numbers: dict[str, dict[str, dict[str, PaperNumber]]] = field(default_factory=dict)
    tsne: Tsne | None = None

    @property
    def cells(self) -> int:
        """How many trials it is, if no two are the same."""
        values = len(self.sweep.values) if self.sweep else 1
        return len(self.arms) * len(self.splits) * values * len(self.seeds)

    def with_seeds(self, seeds: tuple[int, ...]) -> Experiment:
        """The same with other seeds."""
        return replace(self, seeds=seeds)

    def require_arms(self, arms: tuple[str, ...]) -> tuple[str, ...]:
        """These arms, if it has them all."""
        for arm in arms:
            if arm not in self.arms:
                raise ConfigurationError(
                    f"experiment {self.name} has no arm {arm!r}; {nearest(arm, self.arms)}"
                )
        return arms
