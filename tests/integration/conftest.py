"""What the tests share that start programs by the dozen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.supervision import Launcher


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()
