"""An installation for a device has no packages that only servers need."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]
NOT_ON_A_DEVICE = {
    "alembic",
    "matplotlib",
    "onnx",
    "onnxscript",
    "opentelemetry-sdk",
    "scikit-learn",
    "scipy",
    "sqlalchemy",
    "torch",
    "torchvision",
}


def project() -> dict[str, Any]:
    # Not the installed metadata: they are as old as the last `pip install`.
    table: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return table


def applies(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def everything_needed(direct: Iterable[str]) -> set[str]:
    """Return the names of requirements and of their dependencies."""
    names: set[str] = set()
    queue = [Requirement(line) for line in direct]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in names:
            continue
        names.add(name)
        further = [Requirement(line) for line in requires(name) or ()]
        extras = requirement.extras or {""}
        queue += [r for r in further if any(applies(r, extra) for extra in extras)]
    return names


def test_a_device_is_installed_without_torch_and_without_what_servers_need() -> None:
    table = project()
    needed = everything_needed([*table["dependencies"], *table["optional-dependencies"]["edge"]])
    assert {"grpcio", "numpy", "onnxruntime", "protobuf"} <= needed
    assert not needed & NOT_ON_A_DEVICE


def test_the_walk_finds_torch_where_it_is_needed() -> None:
    assert "torch" in everything_needed(["torchvision"])
