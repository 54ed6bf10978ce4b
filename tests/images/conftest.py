"""Podman and the images, built once for all tests of this folder."""

from __future__ import annotations

import pytest

from tests.images.containers import TARGETS, Podman


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    return Podman(tmp_path_factory.mktemp("podman"))


@pytest.fixture(scope="session")
def images(podman: Podman) -> dict[str, str]:
    return {target: podman.build(target) for target in TARGETS}
