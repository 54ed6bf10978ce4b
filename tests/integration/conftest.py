"""What the tests share that start programs by the dozen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.supervision import Launcher


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def plans_dir(pytestconfig: pytest.Config) -> Path:
    """Where plans are kept, also for the next time: each takes some twenty seconds to make."""
    folder: Path = pytestconfig.cache.mkdir("hfmds-plans")  # type: ignore[union-attr]
    return folder
