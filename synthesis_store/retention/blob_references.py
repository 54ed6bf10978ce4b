"""Which content the store needs, and how what nobody needs is deleted.

Content is written before the row that needs it. What might be left over in between is noted as
loose beforehand, so that it is found, whenever the process is killed: by the next one with the same
data folder, or after a day by any. Deleting content and beginning to need it both happen in
transactions that take turns: neither can slip past the other.

Each writer has a note of its own, with a mark, until it has claimed the content or given it up: so
what it puts late is found, too, whatever has become of what others have put. Its mark is void
before the content is deleted. So a writer whose mark is good when its row is written knows that the
content is here: with every other writer waiting, an object store is not asked.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from sqlalchemy import Connection, Engine, and_, bindparam, delete, insert, or_, select, update
from sqlalchemy.orm import Session, aliased
from sqlalchemy.sql import ColumnElement, Select
from sqlalchemy.sql.expression import Exists

from hfmds.domain.digest import Digest
from hfmds.domain.pools import PoolState
from hfmds.errors import Unavailable
from hfmds.storage.blobs import Blobs
from hfmds.storage.database import changing, reading, transaction
from hfmds.storage.prepared import Prepared
from synthesis_store.events import StoreEventKind, StoreEvents
from synthesis_store.tables import BatchRow, LooseBlobRow, PoolRow, ShardRow

log = logging.getLogger(__name__)

Entry = TypeVar("Entry")

_SWEPT_AT_ONCE = 8  # all other writers wait while an object store deletes so many
_ASKED_AT_ONCE = 500
_ABANDONED_AFTER = timedelta(days=1)  # no replica takes so long to write what it has noted

# Not through the ORM, and composed once: these are asked with every batch.
_HASH = bindparam("hash", type_=LooseBlobRow.sha256.type)
_BYTES = bindparam("bytes", type_=LooseBlobRow.size_bytes.type)
_WHY = bindparam("why", type_=LooseBlobRow.reason.type)
_WRITER = bindparam("writing", type_=LooseBlobRow.writer.type)
_SINCE = bindparam("since", type_=LooseBlobRow.noted_at.type)
_MARK = bindparam("its_mark", type_=LooseBlobRow.mark.type)
_THIS = (LooseBlobRow.sha256 == _HASH, LooseBlobRow.size_bytes == _BYTES)
_EXPECT = Prepared(
    insert(LooseBlobRow).values(
        sha256=_HASH,
        size_bytes=_BYTES,
        writer=_WRITER,
        noted_at=_SINCE,
        mark=_MARK,
        reason="",
        void=False,
    )
)
_LOOSEN = insert(LooseBlobRow).from_select(
    [LooseBlobRow.sha256, LooseBlobRow.size_bytes, LooseBlobRow.reason],
    select(_HASH, _BYTES, _WHY).where(
        ~select(LooseBlobRow).where(*_THIS, LooseBlobRow.mark == "").exists()
    ),
)
_GIVE_REASON = update(LooseBlobRow).where(*_THIS, LooseBlobRow.mark == "").values(reason=_WHY)
_FORGET = delete(LooseBlobRow).where(*_THIS, LooseBlobRow.mark == _MARK)
_FORGET_IF_GOOD = Prepared(_FORGET.where(~LooseBlobRow.void))


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

    def expect(self, digest: Digest, instead_of: str = "", within: Connection | None = None) -> str:
        """Note, before content is written, that it may come to be here and belong to nothing.

        Returns a mark to claim it with, or to give it up. `instead_of` is an earlier one, of which
        nobody will make use. By itself, or `within` what is being changed.
        """
        mark = uuid.uuid4().hex
        row = {"writing": self._replica, "since": self._now()}
        with nullcontext(within) if within else changing(self._engine) as connection:
            if instead_of:
                connection.execute(_FORGET, _key(digest, instead_of))
            _EXPECT.change(connection, {**_key(digest, mark), **row})
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
        if mark and _FORGET_IF_GOOD.change(connection, _key(digest, mark)):
            return  # nobody has deleted it since
        if not self._blobs.contains(digest):
            raise Unavailable(f"content {digest} was removed meanwhile; send it again")
        connection.execute(_FORGET, _key(digest, mark))

    def give_up(self, marks: Iterable[tuple[Digest, str]]) -> Erased:
        """Sweep what was expected with these marks, if any, and has not been claimed."""
        unclaimed = self._unclaimed([(digest, mark) for digest, mark in marks if mark])
        for some in _groups(unclaimed, _ASKED_AT_ONCE):
            with changing(self._engine) as connection:
                for digest, mark in some:
                    connection.execute(_FORGET, _key(digest, mark))
                    loosen(connection, digest)
        return self.sweep(digest for digest, _ in unclaimed)

    def sweep(self, digests: Iterable[Digest]) -> Erased:
        """Delete those of these that are loose and that nothing needs.

        What others expect is left to them, unless its deletion was asked for with a reason: then
        their upload finds it gone, and has to be repeated.
        """
        # Each once: several devices may have sent the same.
        loose = self._loose(dict.fromkeys(digests))
        self._void([digest for digest, reason in loose.items() if reason])
        return self._delete(list(loose))

    def _void(self, digests: list[Digest]) -> None:
        """Before anything is deleted: a commit that fails then must not bring back a good mark."""
        for some in _groups(digests, _ASKED_AT_ONCE):
            with reading(self._engine) as session:
                expected = [
                    row.digest for row in session.scalars(_nobodys(some).where(_is_expected()))
                ]
            if expected:
                with transaction(self._engine) as session:
                    marked = _named(expected), LooseBlobRow.mark != ""
                    session.execute(update(LooseBlobRow).where(*marked).values(void=True))

    def _delete(self, loose: list[Digest]) -> Erased:
        erased = Erased()
        for some in _groups(loose, _SWEPT_AT_ONCE):
            # A commit that failed would bring back rows whose content is deleted.
            with transaction(self._engine, after_commits=True) as session:
                found = session.scalars(_nobodys(some).where(~_is_expected()))
                erased += self._sweep(session, [row for row in found if row.digest in some])
        return erased

    def _loose(self, digests: Iterable[Digest]) -> dict[Digest, str]:
        """Those of these that are loose, and why; few, as a rule: all others wait for them."""
        loose: dict[Digest, str] = {}
        for some in _groups(list(digests), _ASKED_AT_ONCE):
            with reading(self._engine) as session:
                reasons = {row.digest: row.reason for row in session.scalars(_nobodys(some))}
            loose |= {digest: reasons[digest] for digest in some if digest in reasons}
        return loose

    def _unclaimed(self, marks: list[tuple[Digest, str]]) -> list[tuple[Digest, str]]:
        """Those of these of which there is still a note, as a rule few."""
        unclaimed: list[tuple[Digest, str]] = []
        for some in _groups(marks, _ASKED_AT_ONCE):
            marked = select(LooseBlobRow).where(_named(digest for digest, _ in some))
            with reading(self._engine) as session:
                noted = {row.mark for row in session.scalars(marked)}
            unclaimed += [(digest, mark) for digest, mark in some if mark in noted]
        return unclaimed

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
        # What was given up and is expected anew is on its way.
        query = select(LooseBlobRow).where(nobodys, or_(LooseBlobRow.mark != "", ~_is_expected()))
        with reading(self._engine) as session:
            left_over = [(row.digest, row.mark) for row in session.scalars(query)]
        erased = self.give_up(left_over)
        return erased + self.sweep(digest for digest, mark in left_over if not mark)

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
    added = connection.execute(_LOOSEN, row).rowcount
    if reason and not added:
        connection.execute(_GIVE_REASON, row)


def _key(digest: Digest, mark: str = "") -> dict[str, object]:
    return {"hash": digest.sha256, "bytes": digest.size_bytes, "its_mark": mark}


def _named(digests: Iterable[Digest]) -> ColumnElement[bool]:
    return LooseBlobRow.sha256.in_([digest.sha256 for digest in digests])


def _nobodys(digests: Iterable[Digest]) -> Select[LooseBlobRow]:
    """The notes of these that no writer has made."""
    return select(LooseBlobRow).where(_named(digests), LooseBlobRow.mark == "")


def _is_expected() -> Exists:
    """For a query of notes: whether somebody relies on it that the content stays."""
    other = aliased(LooseBlobRow)
    same = and_(other.sha256 == LooseBlobRow.sha256, other.size_bytes == LooseBlobRow.size_bytes)
    return select(other).where(same, other.mark != "", ~other.void).exists()


def is_being_erased() -> Exists:
    """For a query: whether there is content to delete, but for what somebody may still send."""
    to_delete = or_(LooseBlobRow.reason != "", ~_is_expected())
    return select(LooseBlobRow).where(LooseBlobRow.mark == "", to_delete).exists()


def _groups(entries: list[Entry], most: int) -> Iterator[list[Entry]]:
    for start in range(0, len(entries), most):
        yield entries[start : start + most]


def is_needed(session: Session, sha256: str) -> bool:
    """Whether an open pool or a snapshot has the content."""
    # By hash alone: a name with a wrong size must not get another's content deleted.
    batch = select(BatchRow).join(PoolRow)
    batch = batch.where(PoolRow.state == PoolState.OPEN.name, BatchRow.sha256 == sha256)
    shard = select(ShardRow).where(ShardRow.sha256 == sha256)
    return session.scalar(select(batch.exists() | shard.exists())) is True
