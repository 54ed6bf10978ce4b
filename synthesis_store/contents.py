"""Which content the store needs, and how what nobody needs is deleted.

Content is written before the row that needs it. What might be left over in between is noted as
loose beforehand, so that it is found, whenever the process is killed: by the next one with the same
data folder, or after a day by any. Deleting content and beginning to need it both happen in
transactions that take turns: neither can slip past the other.

Whoever notes content gets a mark, which is gone before the content is. So a writer whose mark is
still there when its row is written knows that the content is: with every other writer waiting, an
object store is not asked.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    bindparam,
    delete,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from hfmds.digest import Digest
from hfmds.errors import Unavailable
from hfmds.storage.blobs import Blobs
from hfmds.storage.database import changing, reading, transaction
from hfmds.wire.types import PoolState
from synthesis_store.events import StoreEventKind, StoreEvents
from synthesis_store.tables import BatchRow, LooseBlobRow, PoolRow, ShardRow

log = logging.getLogger(__name__)

_SWEPT_AT_ONCE = 8  # all other writers wait while an object store deletes so many
_ASKED_AT_ONCE = 500
_ABANDONED_AFTER = timedelta(days=1)  # no replica takes so long to write what it has noted

# Not through the ORM, and composed once: these are asked with every batch.
_HASH = bindparam("hash", type_=LooseBlobRow.sha256.type)
_BYTES = bindparam("bytes", type_=LooseBlobRow.size_bytes.type)
_WHY = bindparam("why", type_=LooseBlobRow.reason.type)
_WRITER = bindparam("writing", type_=LooseBlobRow.writer.type)
_SINCE = bindparam("since", type_=LooseBlobRow.noted_at.type)
_MARK = bindparam("new_mark", type_=LooseBlobRow.mark.type)
_THIS = (LooseBlobRow.sha256 == _HASH, LooseBlobRow.size_bytes == _BYTES)
_LOOSEN = insert(LooseBlobRow).from_select(
    [
        LooseBlobRow.sha256,
        LooseBlobRow.size_bytes,
        LooseBlobRow.reason,
        LooseBlobRow.writer,
        LooseBlobRow.noted_at,
        LooseBlobRow.mark,
    ],
    select(_HASH, _BYTES, _WHY, _WRITER, _SINCE, _MARK).where(
        ~select(LooseBlobRow).where(*_THIS).exists()
    ),
)
_EXPECT_AGAIN = (
    update(LooseBlobRow).where(*_THIS).values(writer=_WRITER, noted_at=_SINCE, mark=_MARK)
)
_GIVE_UP = update(LooseBlobRow).where(*_THIS).values(reason=_WHY)
_NO_MORE_LOOSE = delete(LooseBlobRow).where(*_THIS)
_NO_MORE_LOOSE_IF_MARKED = _NO_MORE_LOOSE.where(LooseBlobRow.mark == _MARK)


@dataclass(frozen=True, slots=True)
class Erased:
    """Blobs that were deleted, and their size."""

    blobs: int = 0
    size_bytes: int = 0

    def __add__(self, other: Erased) -> Erased:
        return Erased(self.blobs + other.blobs, self.size_bytes + other.size_bytes)


class Contents:
    """Rows and the content they stand for, kept in agreement."""

    def __init__(
        self,
        engine: Engine,
        blobs: Blobs,
        events: StoreEvents,
        replica: str,
        now: Callable[[], datetime],
    ) -> None:
        """`replica` names the process among those that share the database, after a restart too."""
        self._engine = engine
        self._blobs = blobs
        self._events = events
        self._replica = replica
        self._now = now

    def expect(self, digest: Digest) -> str:
        """Note, before content is written, that it may come to be here and belong to nothing.

        Returns a mark to claim it with.
        """
        mark = uuid.uuid4().hex
        row = {**_key(digest), "writing": self._replica, "since": self._now(), "new_mark": mark}
        with changing(self._engine) as connection:
            if not connection.execute(_LOOSEN, {**row, "why": ""}).rowcount:
                connection.execute(_EXPECT_AGAIN, row)
        return mark

    def given_up(self) -> list[Digest]:
        """Loose content whose deletion the log is to tell of."""
        with reading(self._engine) as session:
            rows = session.scalars(select(LooseBlobRow).where(LooseBlobRow.reason != ""))
            return [row.digest for row in rows]

    def forget_copies(self) -> None:
        """Remove this replica's copies of content that another one has erased."""
        if forgotten := self._blobs.forget_deleted():
            log.info("copies of erased content are removed", extra={"blobs": forgotten})

    def claim(self, connection: Connection, digest: Digest, mark: str = "") -> None:
        """From now on the content is needed: it must be here, and is not loose.

        `mark` is that of an `expect` after which it was put, or found to be here.
        """
        marked = {**_key(digest), "new_mark": mark}
        if mark and connection.execute(_NO_MORE_LOOSE_IF_MARKED, marked).rowcount:
            return  # nobody has swept since
        if not self._blobs.contains(digest):
            raise Unavailable(f"content {digest} was removed meanwhile; send it again")
        connection.execute(_NO_MORE_LOOSE, _key(digest))

    def sweep(self, digests: Iterable[Digest]) -> Erased:
        """Delete those of these that are loose and that nothing needs.

        An upload of the same content that is under way finds it gone and has to be repeated.
        """
        # Each once: several devices may have sent the same.
        loose = self._loose(dict.fromkeys(digests))
        self._unmark(loose)
        return self._delete(loose)

    def _unmark(self, loose: list[Digest]) -> None:
        """Before anything is deleted: a commit that fails then must not bring back a mark."""
        for some in _groups(loose, _ASKED_AT_ONCE):
            with transaction(self._engine) as session:
                session.execute(update(LooseBlobRow).where(_named(some)).values(mark=""))

    def _delete(self, loose: list[Digest]) -> Erased:
        erased = Erased()
        for some in _groups(loose, _SWEPT_AT_ONCE):
            # What has a mark again is somebody's who came meanwhile, and sees to it.
            unmarked = select(LooseBlobRow).where(_named(some), LooseBlobRow.mark == "")
            # A commit that failed would bring back rows whose content is deleted.
            with transaction(self._engine, after_commits=True) as session:
                found = session.scalars(unmarked)
                erased += self._sweep(session, [row for row in found if row.digest in some])
        return erased

    def _loose(self, digests: Iterable[Digest]) -> list[Digest]:
        """Those of these that are loose, as a rule few: only for them the others have to wait."""
        loose: list[Digest] = []
        for some in _groups(list(digests), _ASKED_AT_ONCE):
            with reading(self._engine) as session:
                found = session.scalars(select(LooseBlobRow).where(_named(some)))
                named = {row.digest for row in found}
            loose += [digest for digest in some if digest in named]
        return loose

    def sweep_left_over(self, *, at_start: bool = False) -> Erased:
        """Delete loose content that nobody will come back for.

        At the start that is also what the process before this one has noted; what other replicas
        have noted may be on its way.
        """
        nobodys = or_(
            LooseBlobRow.noted_at.is_(None), LooseBlobRow.noted_at < self._now() - _ABANDONED_AFTER
        )
        if at_start:
            nobodys = or_(nobodys, LooseBlobRow.writer == self._replica)
        with reading(self._engine) as session:
            left_over = [row.digest for row in session.scalars(select(LooseBlobRow).where(nobodys))]
        return self.sweep(left_over)

    def _sweep(self, session: Session, rows: Iterable[LooseBlobRow]) -> Erased:
        by_reason: dict[str, Erased] = {}
        for row in rows:
            if not is_needed(session, row.sha256):
                self._blobs.delete(row.digest)
                erased = by_reason.get(row.reason, Erased())
                by_reason[row.reason] = erased + Erased(1, row.size_bytes)
            session.delete(row)
        for reason, erased in sorted(by_reason.items()):
            if reason:
                self._events.append(
                    session,
                    StoreEventKind.CONTENT_ERASED,
                    reason=reason,
                    blobs=erased.blobs,
                    bytes=erased.size_bytes,
                )
        return sum(by_reason.values(), Erased())


def loosen(connection: Connection, digest: Digest, reason: str = "") -> None:
    """The content may be needed no more; with a reason the log will say that it was erased."""
    row = {**_key(digest), "why": reason}
    nobody = {"writing": "", "since": None, "new_mark": ""}
    added = connection.execute(_LOOSEN, {**row, **nobody}).rowcount
    if reason and not added:
        connection.execute(_GIVE_UP, row)


def _key(digest: Digest) -> dict[str, object]:
    return {"hash": digest.sha256, "bytes": digest.size_bytes}


def _named(digests: Iterable[Digest]) -> ColumnElement[bool]:
    return LooseBlobRow.sha256.in_([digest.sha256 for digest in digests])


def _groups(digests: list[Digest], most: int) -> Iterator[list[Digest]]:
    for start in range(0, len(digests), most):
        yield digests[start : start + most]


def is_needed(session: Session, sha256: str) -> bool:
    """Whether an open pool or a snapshot has the content."""
    # By hash alone: a name with a wrong size must not get another's content deleted.
    batch = select(BatchRow).join(PoolRow)
    batch = batch.where(PoolRow.state == PoolState.OPEN.name, BatchRow.sha256 == sha256)
    shard = select(ShardRow).where(ShardRow.sha256 == sha256)
    return session.scalar(select(batch.exists() | shard.exists())) is True
