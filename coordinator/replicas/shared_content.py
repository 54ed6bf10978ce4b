"""Checks that all coordinators on one database keep their content in one place.

Otherwise a coordinator would hand out models that only another one has. The first coordinator puts
a mark into the content and its name into the database. Each other one must find this mark.
"""

from __future__ import annotations

import secrets

from sqlalchemy import Engine

from coordinator.records.tables import ContentMarkRow
from hfmds.domain.digest import digest_of
from hfmds.errors import ConfigurationError
from hfmds.storage.blobs import Blobs
from hfmds.storage.database import read_session, write_session

_MARK_ID = 1


def require_shared_content(engine: Engine, marks: Blobs) -> None:
    """Make the mark, or find it; ConfigurationError if it is absent."""
    mark = _known_mark(engine) or _make_mark(engine, marks)
    if not marks.contains(digest_of(mark.encode())):
        raise ConfigurationError(
            "the other coordinators on this database keep their content in another place: set "
            "HFMDS_BLOBS_URL to one place that all of them reach, such as s3://bucket/prefix "
            "(without it, each coordinator uses its own HFMDS_DATA_DIR)"
        )


def _known_mark(engine: Engine) -> str | None:
    with read_session(engine) as session:
        row = session.get(ContentMarkRow, _MARK_ID)
        return row.mark if row else None


def _make_mark(engine: Engine, marks: Blobs) -> str:
    """Make the mark and return it; if another coordinator was faster, return its mark."""
    mark = secrets.token_hex(16)
    # The content comes first: a name without its mark would refuse every coordinator.
    digest = marks.put_bytes(mark.encode())
    with write_session(engine) as session:
        row = session.get(ContentMarkRow, _MARK_ID)
        if row is None:
            session.add(ContentMarkRow(mark_id=_MARK_ID, mark=mark))
            return mark
        other = row.mark
    marks.delete(digest)
    return other
