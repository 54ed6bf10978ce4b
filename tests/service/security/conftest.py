from pathlib import Path

import pytest

from tests.support.fleet_certificates import FleetCertificates


@pytest.fixture
def fleet(tmp_path: Path) -> FleetCertificates:
    return FleetCertificates.create(tmp_path)
