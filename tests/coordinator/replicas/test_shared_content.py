"""Coordinators on one database must share their content; the check refuses others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.records.tables import Base
from coordinator.replicas.shared_content import require_shared_content
from hfmds.domain.digest import Digest
from hfmds.errors import ConfigurationError
from hfmds.storage.blobs import FolderBlobs
from hfmds.storage.database import opened_database
from tests.support.databases import database_of


def test_the_first_coordinator_leaves_a_mark_that_others_must_find(tmp_path: Path) -> None:
    shared, other = FolderBlobs(tmp_path / "shared"), FolderBlobs(tmp_path / "other")
    with opened_database(database_of(tmp_path)) as engine:
        Base.metadata.create_all(engine)
        require_shared_content(engine, shared)
        require_shared_content(engine, FolderBlobs(tmp_path / "shared"))
        assert len(list(shared.digests())) == 1
        with pytest.raises(ConfigurationError, match="HFMDS_BLOBS_URL"):
            require_shared_content(engine, other)
        assert list(other.digests()) == []


class SlowBlobs(FolderBlobs):
    """A blob store that runs an action during each write."""

    def __init__(self, folder: Path, during_put: Callable[[], None]) -> None:
        super().__init__(folder)
        self._during_put = during_put

    def put_bytes(self, data: bytes | memoryview) -> Digest:
        self._during_put()
        return super().put_bytes(data)


@pytest.mark.parametrize("is_shared", [True, False])
def test_two_first_coordinators_agree_on_one_mark(tmp_path: Path, is_shared: bool) -> None:
    quick = FolderBlobs(tmp_path / ("slow" if is_shared else "quick"))
    with opened_database(database_of(tmp_path)) as engine:
        Base.metadata.create_all(engine)
        slow = SlowBlobs(tmp_path / "slow", lambda: require_shared_content(engine, quick))
        if is_shared:
            require_shared_content(engine, slow)
        else:
            with pytest.raises(ConfigurationError):
                require_shared_content(engine, slow)
        assert len(list(quick.digests())) == 1
        assert len(list(slow.digests())) == (1 if is_shared else 0)
