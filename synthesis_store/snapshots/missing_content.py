"""Content that the database names but the storage does not have.

The store deletes nothing that a row needs (`content/orphans.py`). But an operator can delete
files, or restore the database without them, and an object store can be slow to show an object. So
the store waits ten minutes before it gives up missing content. Then it seals the pool without that
content. It does not ask devices again, because a pool is sealed when their work is over.

If all batches of a pool are missing, the store gives up nothing: more likely its disk is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from datetime import datetime, timedelta

from hfmds.domain.digest import Digest
from hfmds.errors import Unavailable, WrongState
from hfmds.storage.blobs import Blobs
from synthesis_store.pools.pool_records import PoolRecords
from synthesis_store.snapshots.snapshot_records import SealInput, SnapshotRecords

log = logging.getLogger(__name__)

LOST_AFTER = timedelta(minutes=10)
"""How long content is missing before the store gives it up."""


class MissingContent:
    """Remembers missing content by pool. For one sealing thread at a time."""

    def __init__(
        self,
        pools: PoolRecords,
        snapshots: SnapshotRecords,
        blobs: Blobs,
        now: Callable[[], datetime],
    ) -> None:
        self._pools = pools
        self._snapshots = snapshots
        self._blobs = blobs
        self._now = now
        self._missing_since: dict[str, dict[Digest, datetime]] = {}  # by pool
        self._lost: dict[str, Set[Digest]] = {}  # by pool

    def lost(self, pool_id: str) -> Set[Digest]:
        """Return the content that the snapshot of this pool must do without."""
        return self._lost.get(pool_id, frozenset())

    def give_up(self, seal_input: SealInput, missing: Digest) -> bool:
        """Give up content that has been missing for long, after `missing` was not found.

        Returns false if nothing is missing now. Raises Unavailable while content may come back,
        and WrongState if all batches are missing.
        """
        pool_id, now = seal_input.pool_id, self._now()
        earlier = self._missing_since.get(pool_id, {})
        # The first call looks for all content. Later calls look only for what was missing,
        # because an object store takes long to answer for thousands of objects.
        candidates = earlier.keys() if earlier else self._needed(seal_input) - self.lost(pool_id)
        missing_since = self._missing_since[pool_id] = {
            digest: earlier.get(digest, now)
            for digest in candidates | {missing}
            if not self._blobs.contains(digest)
        }
        if not missing_since:
            return False
        lost = {digest for digest, since in missing_since.items() if now - since >= LOST_AFTER}
        if not lost:
            until = min(missing_since.values()) + LOST_AFTER
            raise Unavailable(
                f"pool {pool_id} is not sealed yet: the content of {len(missing_since)} of its "
                f"batches or of the shards before is missing, such as {missing}; restore it, or "
                f"the pool is sealed without it from {until:%H:%M:%S %Z} on"
            )
        if all(contribution.batch in lost for contribution in seal_input.present):
            raise WrongState(
                f"pool {pool_id} cannot be sealed: the content of none of its "
                f"{len(seal_input.present)} batches is stored; restore it, or delete the run"
            )
        batches = self._pools.remove_lost_batches(pool_id, lost)
        log.error(
            "content is lost: it was missing for %s; the pool is sealed without it",
            LOST_AFTER,
            extra={"blobs": len(lost), "batches": batches},
        )
        self._lost[pool_id] = self.lost(pool_id) | lost
        self._missing_since[pool_id] = {
            digest: since for digest, since in missing_since.items() if digest not in lost
        }
        return True

    def forget(self, pool_id: str) -> None:
        """Forget a sealed pool."""
        self._missing_since.pop(pool_id, None)
        self._lost.pop(pool_id, None)

    def _needed(self, seal_input: SealInput) -> Set[Digest]:
        parent = seal_input.parent_snapshot_id
        shards = self._snapshots.known_shards(parent) if parent else ()
        return {
            *(contribution.batch for contribution in seal_input.present),
            *(known.shard.digest for known in shards),
        }
