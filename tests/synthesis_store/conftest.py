from pathlib import Path

import pytest

from tests.synthesis_store.examples import SPEC, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one open pool, "pool-1"."""
    store = Store(tmp_path)
    store.pools.open("pool-1", SPEC)
    return store
