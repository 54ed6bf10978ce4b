"""What the coordinator needs of the synthesis store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hfmds.domain.pools import Contribution, PoolSpec, Snapshot


class PoolStore(Protocol):
    """The synthesis store, as runs use it."""

    async def open_pool(
        self, pool_id: str, spec: PoolSpec, referenced_snapshots: Sequence[str] = ()
    ) -> frozenset[str]:
        """Open a pool for one refresh, and keep these snapshots until the next is opened.

        Returns the devices whose batches it refuses because they were withdrawn.
        """

    async def seal_pool(
        self, pool_id: str, contributions: Sequence[Contribution]
    ) -> tuple[Snapshot, tuple[Contribution, ...]]:
        """Seal the named batches. Returns the snapshot, and the batches that are not in it."""

    async def release_run(self, run_id: str) -> int:
        """Give up all snapshots of a run; returns their number."""
