from pathlib import Path

import pytest

from tests.edge_client.fakes import Device


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)
