"""An experiment: every arm under every split, with every seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from hfmds.domain.methods import METHODS
from hfmds.errors import ConfigurationError
from hfmds.experiments.settings import Settings, Value, nearest, require_keys

ReportKind = Literal["accuracy", "cost", "convergence", "tsne"]
"""The main subject of an experiment's page."""

Measure = Literal["accuracy", "psnr", "gflops"]
"""A quantity for which the paper has numbers."""


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
    """The trials of one command: every arm under every split, for every swept value and seed.

    Of the same setting made twice the later in this list wins: settings, split, sweep, arm.
    """

    title: str  # one line, for lists and tables
    settings: Settings  # of all trials
    splits: dict[str, Settings]
    arms: dict[str, Settings]
    seeds: tuple[int, ...] = (0, 1, 2)
    controls: tuple[str, ...] = ()  # arms that the others are compared with
    sweep: Sweep | None = None
    last_rounds: int = 1  # the reported accuracy is the mean of so many
    paper: str = ""  # what it repeats of the paper
    about: str = ""
    report: ReportKind = "accuracy"
    # By measure, then arm, then split; a number for all splits has the split "".
    paper_numbers: dict[Measure, dict[str, dict[str, PaperNumber]]] = field(default_factory=dict)
    tsne: Tsne | None = None
    name: str = ""  # the loader sets name and size
    size: str = ""

    def __post_init__(self) -> None:
        where = f"experiment {self.name or self.title}"
        for key in ("splits", "arms", "seeds"):
            if not getattr(self, key):
                raise ConfigurationError(f"{where} has no {key}; add some")
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ConfigurationError(
                f"{where}: seeds are {self.seeds}; they must be different whole numbers from 0 on"
            )
        if self.last_rounds < 1:
            raise ConfigurationError(
                f"{where}: last_rounds is {self.last_rounds}; it must be at least 1"
            )
        require_keys(self.settings, where)
        for kind, named in (("split", self.splits), ("arm", self.arms)):
            for name, settings in named.items():
                require_keys(settings, f"{where}: {kind} {name!r}")
        if self.sweep:
            require_keys({self.sweep.setting: None}, f"{where}: sweep")
        for name, settings in self.arms.items():
            method = str(settings.get("method", self.settings.get("method", "")))
            if method not in METHODS:
                raise ConfigurationError(
                    f"{where}: arm {name!r}: method is {method!r}; {nearest(method, METHODS)}"
                )
        self.require_arms(self.controls)
        self.require_arms(self.tsne.panels if self.tsne else ())

    @property
    def cells(self) -> int:
        """The number of trials, if no two are the same."""
        values = len(self.sweep.values) if self.sweep else 1
        return len(self.arms) * len(self.splits) * values * len(self.seeds)

    def with_seeds(self, seeds: tuple[int, ...]) -> Experiment:
        """Return the same experiment with other seeds."""
        return replace(self, seeds=seeds)

    def require_arms(self, arms: tuple[str, ...]) -> tuple[str, ...]:
        """Return these arms if the experiment has them all."""
        for arm in arms:
            if arm not in self.arms:
                name = self.name or self.title
                raise ConfigurationError(
                    f"experiment {name} has no arm {arm!r}; {nearest(arm, self.arms)}"
                )
        return arms
