"""Content that the database has and its storage has not: lost, deleted by hand, never restored.

The store deletes nothing that a row needs (`contents`). What is not found may still come back: an
object store can be slow to show it, or somebody is restoring it. So it is missed for a while before
it is given up, and then the pool is sealed without it; devices are not asked again, as a pool is
sealed when their work is over. Where nothing at all is found, nothing is given up: rather than all
its content, a storage has lost its disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from datetime import datetime, timedelta

from sqlalchemy import Engine

from hfmds.domain.digest import Digest
from hfmds.domain.pools import PoolState
from hfmds.errors import Unavailable, WrongState
from hfmds.storage.blobs import Blobs
from hfmds.storage.database import transaction
from synthesis_store.access.pseudonyms import Identity
from synthesis_store.events import StoreEventKind, StoreEvents
from synthesis_store.pools.pool_records import batches_of, require_pool
from synthesis_store.pools.pool_totals import take_out
from synthesis_store.retention.blob_references import Contents, loosen
from synthesis_store.snapshots.snapshot_records import Basis, SnapshotRecords

log = logging.getLogger(__name__)

LOST_AFTER = timedelta(minutes=10)
"""How long content is missed before it is given up."""


class Losses:
    """Misses content, and gives it up. For whoever seals: one at a time."""

    def __init__(
        self,
        engine: Engine,
        records: SnapshotRecords,
        contents: Contents,
        blobs: Blobs,
        events: StoreEvents,
        identity: Identity,
        now: Callable[[], datetime],
    ) -> None:
        self._engine = engine
        self._records = records
        self._contents = contents
        self._blobs = blobs
        self._events = events
        self._identity = identity
        self._now = now
        self._missed: dict[str, dict[Digest, datetime]] = {}  # by pool, with when it began
        self._given_up: dict[str, Set[Digest]] = {}  # by pool

    def given_up(self, pool_id: str) -> Set[Digest]:
        """What a snapshot of this pool has to do without."""
        return self._given_up.get(pool_id, frozenset())

    def give_up(self, basis: Basis, missing: Digest) -> bool:
        """Give up what was missed for long, of which `missing` was found missing just now.

        False if nothing is missing any more. Unavailable while it may come back; WrongState if
        all batches are missing.
        """
        pool_id, now = basis.pool_id, self._now()
        before = self._missed.get(pool_id, {})
        # All of it is looked for once: an object store is slow to ask of thousands.
        asked = before.keys() if before else self._needed(basis) - self.given_up(pool_id)
        missed = self._missed[pool_id] = {
            digest: before.get(digest, now)
            for digest in asked | {missing}
            if not self._blobs.contains(digest)
        }
        if not missed:
            return False
        lost = {digest for digest, since in missed.items() if now - since >= LOST_AFTER}
        if not lost:
            until = min(missed.values()) + LOST_AFTER
            raise Unavailable(
                f"pool {pool_id} is not sealed yet: {len(missed)} of its batches or of the shards "
                f"before are not where content is kept, such as {missing}; restore them, or it is "
                f"sealed without them from {until:%H:%M:%S %Z} on"
            )
        if all(item.batch in lost for item in basis.present):
            raise WrongState(
                f"pool {pool_id} cannot be sealed: none of its {len(basis.present)} batches is "
                "where content is kept; restore them, or delete the run"
            )
        self._take_out(pool_id, lost)
        self._given_up[pool_id] = self.given_up(pool_id) | lost
        self._missed[pool_id] = {digest: missed[digest] for digest in missed.keys() - lost}
        self._contents.sweep(lost)
        return True

    def forget(self, pool_id: str) -> None:
        """The pool is sealed."""
        self._missed.pop(pool_id, None)
        self._given_up.pop(pool_id, None)

    def _needed(self, basis: Basis) -> Set[Digest]:
        parent = basis.parent_snapshot_id
        shards = self._records.known_shards(parent) if parent else ()
        return {*(item.batch for item in basis.present), *(one.shard.digest for one in shards)}

    def _take_out(self, pool_id: str, lost: Set[Digest]) -> None:
        """Out of the pool; snapshots that are sealed stay as they are."""
        batches = 0
        with transaction(self._engine) as session:
            pool = require_pool(session, pool_id)
            if pool.state != PoolState.OPEN.name:  # meanwhile, by another replica
                return
            for row in batches_of(session, pool_id):
                if row.digest in lost:
                    batches += 1
                    take_out(pool, row)
                    session.delete(row)
                    loosen(session.connection(), row.digest)  # should it come back after all
                    self._events.append(
                        session,
                        StoreEventKind.BATCH_LOST,
                        pool=pool_id,
                        contributor=self._identity.pseudonym(row.device_id),
                        samples=row.samples,
                    )
        log.error(
            "content is lost: it was not found for %s; the pool is sealed without it",
            LOST_AFTER,
            extra={"blobs": len(lost), "batches": batches},
        )
