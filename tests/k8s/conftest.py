"""Rendered manifests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

MANIFESTS = Path(__file__).resolve().parents[2] / "k8s"


@cache
def rendered(folder: Path) -> tuple[dict[str, Any], ...]:
    """Render a kustomization."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.fail("kubectl (1.27 or newer) is needed to render k8s/; install it", pytrace=False)
    made = subprocess.run(
        [kubectl, "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return tuple(yaml.safe_load_all(made.stdout))


@cache
def base_with(*components: str) -> tuple[dict[str, Any], ...]:
    """Render the base with components."""
    return on_top_of("base", components, patches=[])


def on_top_of(
    below: str, components: Sequence[str], patches: list[dict[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """Render an overlay of your own on top of the base or of an overlay."""
    with tempfile.TemporaryDirectory() as folder:
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": "hfmds",
            "resources": [os.path.relpath(MANIFESTS / below, folder)],
            "components": [
                os.path.relpath(MANIFESTS / "components" / name, folder) for name in components
            ],
            "patches": patches,
        }
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return rendered(Path(folder))


def all_overlays() -> tuple[str, ...]:
    """Return the names of all overlays."""
    return tuple(sorted(folder.name for folder in (MANIFESTS / "overlays").iterdir()))


@pytest.fixture(params=[*all_overlays(), "backup", "gpu s3", "tls tracing"])
def overlay(request: pytest.FixtureRequest) -> tuple[dict[str, Any], ...]:
    """Resources of each overlay, and of the base with combinations that no overlay has."""
    if request.param in all_overlays():
        return rendered(MANIFESTS / "overlays" / request.param)
    return base_with(*request.param.split())
