"""What an installation brings with it: a device must not pay for what only servers need."""

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
    """The names of these requirements and of all that they need in turn."""
    found: set[str] = set()
    left = [Requirement(line) for line in direct]
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        if name in found:
            continue
        found.add(name)
        further = [Requirement(line) for line in requires(name) or ()]
        extras = one.extras or {""}
        left += [r for r in further if any(applies(r, extra) for extra in extras)]
    return found


def test_a_device_is_installed_without_torch_and_without_what_servers_need() -> None:
    table = project()
    needed = everything_needed([*table["dependencies"], *table["optional-dependencies"]["edge"]])
    assert {"grpcio", "numpy", "onnxruntime", "protobuf"} <= needed
    assert not needed & NOT_ON_A_DEVICE


def test_the_walk_finds_torch_where_it_is_needed() -> None:
    assert "torch" in everything_needed(["torchvision"])
