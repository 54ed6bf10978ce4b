"""The configs that come with the program, and finding one by name or by file."""

from __future__ import annotations

from pathlib import Path

from hfmds.errors import ConfigurationError
from hfmds.experiments.vocabulary import nearest

FOLDER = Path(__file__).parent / "configs"
"""`experiments/` at the top of the repository is this folder."""

_SHARED = "common"  # what the others build on; no experiment itself


def names() -> list[str]:
    """The experiments that come with the program."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != _SHARED)


def find(name_or_file: str) -> Path:
    """The config of a name, or the file itself."""
    if name_or_file in names():
        return FOLDER / f"{name_or_file}.yaml"
    path = Path(name_or_file)
    if path.is_file():
        return path
    if path.suffix in (".yaml", ".yml"):
        raise ConfigurationError(f"there is no config {path}; check the path")
    raise ConfigurationError(
        f"there is no experiment {name_or_file!r}, and no .yaml file of that name; "
        f"{nearest(name_or_file, names())}"
    )
