"""The lifetime of content: which digests the store needs, and the sweep that deletes the others.

The store needs the batches of open pools and the shards of snapshots. All other content is an
*orphan*. `is_needed` and `needed_content` answer this question from the rows alone.

Rules that keep rows and content in agreement:

1. A writer stores content first and adds the row that needs it later. A crash in between leaves an
   orphan.
2. Nothing deletes content that has no committed row in `orphans`. That row stays for
   `_REMEMBERED` after the deletion.
3. The transaction that adds a row calls `rescue`. If the content has no row in `orphans`, nothing
   can have deleted it since the writer stored it. Otherwise `rescue` looks whether it is still
   stored, and asks the writer to send it again if not.

So an object store is asked only about content that was an orphan, and writers leave no notes.

A change that makes content an orphan adds it and deletes it at once: a withdrawn device's batch
does not wait. The sweep finds orphans that a crash left. It lists all content, and deletes an
orphan when the grace time has passed, because a writer may be about to add its row. It does nothing
for a database that is younger than the content: an operator may have named the wrong one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import CompoundSelect, Engine, bindparam, delete, select, union
from sqlalchemy.orm import Session
from sqlalchemy.sql import ColumnElement

from hfmds.domain.digest import Digest
from hfmds.domain.pools import PoolState
from hfmds.errors import Unavailable
from hfmds.storage.blobs import Blobs
from hfmds.storage.database import read_session, write_session
from synthesis_store.events import StoreEventKind, StoreEvents
from synthesis_store.tables import BatchRow, OrphanRow, PoolRow, ShardRow, StoreRow

log = logging.getLogger(__name__)

_DELETED_AT_ONCE = 8  # all other writers wait while an object store deletes these
_QUERIED_AT_ONCE = 500
_REMEMBERED = timedelta(days=1)  # far longer than a call takes to store content and add its row

# Built once, because every upload executes it.
_NAMED = select(OrphanRow).where(OrphanRow.sha256.in_(bindparam("hashes", expanding=True)))


@dataclass(frozen=True, slots=True)
class Erased:
    """The number of deleted blobs and their size."""

    blobs: int = 0
    size_bytes: int = 0

    def __add__(self, other: Erased) -> Erased:
        return Erased(self.blobs + other.blobs, self.size_bytes + other.size_bytes)


class Orphans:
    """Content that no row needs, until it is deleted. Methods block."""

    def __init__(
        self,
        engine: Engine,
        blobs: Blobs,
        events: StoreEvents,
        grace: timedelta,
        now: Callable[[], datetime],
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self._events = events
        self._grace = grace
        self._now = now

    def add(self, session: Session, digest: Digest, reason: str = "") -> None:
        """Let the next `delete` delete this content, in the transaction that gives it up.

        With a `reason`, the event log tells of the deletion.
        """
        row = session.get(OrphanRow, (digest.sha256, digest.size_bytes))
        if row is None:
            row = OrphanRow(sha256=digest.sha256, size_bytes=digest.size_bytes, reason="")
            session.add(row)
        elif row.deleted_at is not None:
            row.reason = ""
        row.reason = reason or row.reason
        row.due_at, row.deleted_at = self._now(), None

    def rescue(self, session: Session, digests: Iterable[Digest]) -> None:
        """Stop the deletion of content that a new row needs, in the transaction that adds the row.

        Raises Unavailable if the content was deleted: the writer must send it again.
        """
        for group in _groups(digests, _QUERIED_AT_ONCE):
            for row in session.scalars(_NAMED, _hashes_of(group)):
                if row.digest not in group:
                    continue
                if not self._blobs.contains(row.digest):
                    raise Unavailable(f"content {row.digest} was deleted; send it again")
                session.delete(row)

    def discard(self, digests: Iterable[Digest]) -> Erased:
        """Delete content that was stored for a row that will not be added."""
        stored = [digest for digest in digests if self._blobs.contains(digest)]
        if not stored:
            return Erased()
        with write_session(self._engine) as session:
            for digest in stored:
                if not is_needed(session, digest):
                    self.add(session, digest)
        return self.delete(stored)

    def delete(self, digests: Iterable[Digest]) -> Erased:
        """Delete those orphans among `digests` that are due."""
        erased = Erased()
        for group in _groups(dict.fromkeys(digests), _DELETED_AT_ONCE):
            # If this transaction fails after the deletion, the rows are still there, and the next
            # sweep deletes once more.
            with write_session(self._engine) as session:
                due = session.scalars(_NAMED.where(self._is_due()), _hashes_of(group))
                erased += self._delete(session, due.all())
        return erased

    def delete_due(self) -> Erased:
        """Delete all orphans that are due, also those that an earlier process left."""
        with read_session(self._engine) as session:
            due = [row.digest for row in session.scalars(select(OrphanRow).where(self._is_due()))]
        return self.delete(due)

    def sweep(self) -> Erased:
        """Find the orphans that a crash left, and delete what is due. Lists all content."""
        self._add_unknown()
        erased = self.delete_due()
        with write_session(self._engine) as session:
            forgotten = OrphanRow.deleted_at < self._now() - _REMEMBERED
            session.execute(delete(OrphanRow).where(forgotten))
        self._remove_copies()
        return erased

    def has_due(self, session: Session) -> bool:
        """Return whether content waits to be deleted now."""
        return session.scalar(select(select(OrphanRow).where(self._is_due()).exists())) is True

    def _is_due(self) -> ColumnElement[bool]:
        return OrphanRow.deleted_at.is_(None) & (OrphanRow.due_at <= self._now())

    def _delete(self, session: Session, rows: Sequence[OrphanRow]) -> Erased:
        by_reason: dict[str, Erased] = {}
        for row in rows:
            if is_needed(session, row.digest):
                session.delete(row)
                continue
            self._blobs.delete(row.digest)
            row.deleted_at = self._now()
            erased = by_reason.get(row.reason, Erased())
            by_reason[row.reason] = erased + Erased(1, row.size_bytes)
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

    def _add_unknown(self) -> None:
        """Add a row for each orphan that has none. It is due after the grace time."""
        if not self._owns_content():
            log.warning(
                "the store keeps content that no row needs, because there was content before its "
                "database; give a new database an empty HFMDS_BLOBS_URL"
            )
            return
        stored = set(self._blobs.digests())
        with read_session(self._engine) as session:
            needed = {row.sha256 for row in session.execute(needed_content())}
            waiting = select(OrphanRow).where(OrphanRow.deleted_at.is_(None))
            known = {row.digest for row in session.scalars(waiting)}
        unknown = [d for d in stored - known if d.sha256 not in needed]
        due_at = self._now() + self._grace
        for group in _groups(sorted(unknown), _QUERIED_AT_ONCE):
            with write_session(self._engine) as session:
                for digest in group:
                    self._add_later(session, digest, due_at)

    def _owns_content(self) -> bool:
        with read_session(self._engine) as session:
            return session.scalar(select(StoreRow.owns_content)) is True

    def _add_later(self, session: Session, digest: Digest, due_at: datetime) -> None:
        row = session.get(OrphanRow, (digest.sha256, digest.size_bytes))
        if row is None:
            row = OrphanRow(sha256=digest.sha256, size_bytes=digest.size_bytes)
            session.add(row)
        elif row.deleted_at is None:  # another thread was faster
            return
        row.reason, row.due_at, row.deleted_at = "", due_at, None

    def _remove_copies(self) -> None:
        """Remove this replica's local copies of content that another replica has deleted."""
        if removed := self._blobs.forget_deleted():
            log.info("copies of deleted content removed", extra={"blobs": removed})


def needed_content() -> CompoundSelect[tuple[str, int]]:
    """Return the query for all content that the store needs."""
    in_open_pools = (
        select(BatchRow.sha256, BatchRow.size_bytes)
        .join(PoolRow)
        .where(PoolRow.state == PoolState.OPEN.name)
    )
    return union(in_open_pools, select(ShardRow.sha256, ShardRow.size_bytes))


def is_needed(session: Session, digest: Digest) -> bool:
    """Return whether an open pool or a snapshot has the content.

    Compares hashes alone: a name with a wrong size must not get a needed blob deleted.
    """
    batch = select(BatchRow).join(PoolRow)
    batch = batch.where(PoolRow.state == PoolState.OPEN.name, BatchRow.sha256 == digest.sha256)
    shard = select(ShardRow).where(ShardRow.sha256 == digest.sha256)
    return session.scalar(select(batch.exists() | shard.exists())) is True


def _hashes_of(digests: Iterable[Digest]) -> dict[str, list[str]]:
    return {"hashes": [digest.sha256 for digest in digests]}


def _groups(digests: Iterable[Digest], size: int) -> Iterator[list[Digest]]:
    remaining = iter(digests)
    while group := list(islice(remaining, size)):
        yield group
