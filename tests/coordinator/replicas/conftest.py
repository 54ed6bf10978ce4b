from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from coordinator.records.tables import Base
from hfmds.storage.database import opened_database


@pytest.fixture
def engine(postgres_url: str) -> Iterator[Engine]:
    """A database on PostgreSQL with the coordinator's tables."""
    with opened_database(postgres_url) as engine:
        Base.metadata.create_all(engine)
        yield engine
