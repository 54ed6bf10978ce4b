"""Whether several coordinators on one database keep content in one place, as they must.

Each would hand out models that the others have and it has not. So the first one leaves a mark in
the content and names it in the database, and every other one must find it.
"""

from __future__ import annotations

import secrets

from sqlalchemy import Engine

from coordinator.records.tables import ContentMarkRow
from hfmds.domain.digest import digest_of
from hfmds.errors import ConfigurationError
from hfmds.storage.blobs import Blobs
from hfmds.storage.database import reading, transaction

_KEY = 1


def require_shared_content(engine: Engine, marks: Blobs) -> None:
    """Leave a mark, or find the one that was left; ConfigurationError if it is not there."""
    mark = _known(engine) or _leave(engine, marks)
    if not marks.contains(digest_of(mark.encode())):
        raise ConfigurationError(
            "the coordinators on this database keep their content elsewhere: set HFMDS_BLOBS_URL "
            "to one place that all of them reach, such as s3://bucket/prefix (unset, it is inside "
            "HFMDS_DATA_DIR, which is each one's own)"
        )


def _known(engine: Engine) -> str | None:
    with reading(engine) as session:
        row = session.get(ContentMarkRow, _KEY)
        return row.mark if row else None


def _leave(engine: Engine, marks: Blobs) -> str:
    """Leave a mark, unless another one was quicker; the one that counts."""
    mark = secrets.token_hex(16)
    # In this order: a mark that is named and not there would keep everyone out.
    left = marks.put_bytes(mark.encode())
    with transaction(engine) as session:
        row = session.get(ContentMarkRow, _KEY)
        if row is None:
            session.add(ContentMarkRow(mark_id=_KEY, mark=mark))
            return mark
        counts = row.mark
    marks.delete(left)
    return counts
