"""The bills of materials of the images, and the audit of packages."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]


def script(name: str) -> ModuleType:
    """Import a script of packaging/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "packaging" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sbom, audit = script("sbom"), script("audit")


@pytest.fixture(scope="module")
def packages() -> Any:
    return sbom.Packages()


@pytest.mark.parametrize("image", sbom.IMAGES)
def test_a_bill_is_sound_and_names_what_the_project_asks_for(image: str, packages: Any) -> None:
    text = sbom.bill(image, packages)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    named = {component["name"] for component in bill["components"]}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    asked = list(project["dependencies"])
    for extra in sbom.IMAGES[image].extras:
        asked += project["optional-dependencies"][extra]
    assert {canonicalize_name(Requirement(one).name) for one in asked} <= named
    # Everything is there for a reason: the image needs it, directly or not.
    needs = {one["ref"]: one.get("dependsOn", []) for one in bill["dependencies"]}
    reached, left = set(), [f"image-{image}"]
    while left:
        reached.add(left[-1])
        left += [one for one in needs[left.pop()] if one not in reached]
    assert reached == needs.keys()


def test_bills_are_of_what_the_dockerfile_installs() -> None:
    dockerfile = (REPOSITORY / "k8s" / "Dockerfile").read_text()
    installed = {
        tuple(extras.split(",")) for extras in re.findall(r"pip install '\.\[(.*?)\]'", dockerfile)
    }
    assert {image.extras for image in sbom.IMAGES.values()} == installed
    targets = set(re.findall(r"^FROM runtime AS (\S+)", dockerfile, re.MULTILINE))
    assert sbom.IMAGES.keys() <= targets


def test_devices_and_the_store_have_no_torch(packages: Any) -> None:
    for image in ("edge-client", "edge-simulator", "synthesis-store"):
        assert "torch" not in packages.closure(sbom.IMAGES[image])


def test_a_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(sbom.NotInstalled, match="is not installed"):
        sbom.bill("edge-client", sbom.Packages([str(tmp_path)]))


# --- the audit ----------------------------------------------------------------------------------

GOOD = {"name": "numpy", "version": "2.0", "vulns": []}
OWN = {"name": "hfmds-fl", "skip_reason": "distribution marked as editable"}
UNKNOWN = {"name": "torch", "skip_reason": "Dependency not found on PyPI"}
BAD = {"name": "pillow", "version": "9.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["9.1"]}]}


@pytest.mark.parametrize(
    ("dependencies", "code", "datum"),
    [
        ([GOOD, OWN], 0, "2 packages"),
        ([GOOD, BAD], 1, "pillow 9.0: PYSEC-1"),
        ([GOOD, UNKNOWN], 3, "1 of 2 packages (torch"),
        ([BAD, UNKNOWN], 1, "pillow 9.0"),
    ],
)
def test_an_audit_that_asked_nobody_fails(
    dependencies: list[dict[str, Any]], code: int, datum: str
) -> None:
    exit_code, lines = audit.verdict(dependencies)
    assert exit_code == code
    assert datum in lines[0]
