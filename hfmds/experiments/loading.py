"""Finds experiments: the catalogue that comes with the program, and Python files of the operator.

An experiment file defines `experiment(size)`, which returns an `Experiment`. It may define `SIZES`,
the names of the sizes; without it the only size is "small".
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hfmds.errors import ConfigurationError
from hfmds.experiments.experiment import Experiment
from hfmds.experiments.settings import nearest

CATALOGUE = Path(__file__).parent / "catalogue"
"""The folder `experiments/` at the top of the repository is a link to this one."""

_SHARED = ("__init__", "paper")  # modules of the catalogue that are no experiments


@dataclass(frozen=True, slots=True)
class ExperimentFile:
    """An experiment in all its sizes."""

    name: str
    sizes: tuple[str, ...]
    make: Callable[[str], Experiment]

    def experiment(self, size: str) -> Experiment:
        """Return the experiment in one of its sizes."""
        if size not in self.sizes:
            raise ConfigurationError(
                f"{self.name} has no size {size!r}; {nearest(size, self.sizes)}"
            )
        return replace(self.make(size), name=self.name, size=size)


def names() -> list[str]:
    """Return the names of the experiments that come with the program."""
    return sorted(path.stem for path in CATALOGUE.glob("*.py") if path.stem not in _SHARED)


def load(name_or_file: str) -> ExperimentFile:
    """Load an experiment of the catalogue by its name, or one from a Python file."""
    path = Path(name_or_file)
    if name_or_file in names():
        path = CATALOGUE / f"{name_or_file}.py"
    elif path.suffix != ".py":
        raise ConfigurationError(
            f"there is no experiment {name_or_file!r}, and no .py file of that name; "
            f"{nearest(name_or_file, names())}"
        )
    elif not path.is_file():
        raise ConfigurationError(f"there is no file {path}; check the path")
    try:
        module = runpy.run_path(str(path))
    except (SyntaxError, NameError, ImportError, TypeError) as error:
        raise ConfigurationError(f"cannot load {path}: {error}") from error
    if "experiment" not in module:
        raise ConfigurationError(f"{path} defines no function experiment(size); add it")
    return ExperimentFile(path.stem, tuple(module.get("SIZES", ("small",))), module["experiment"])
