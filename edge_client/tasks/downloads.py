"""Fetches what a task needs, unless it is in the cache: weights, a plan, synthetic images."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from edge_client.device.content_cache import ContentCache
from edge_client.peers import Peers
from edge_client.tasks.transfers import Transfers
from hfmds.algorithm.seeds import derive_seed
from hfmds.domain.digest import Digest
from hfmds.domain.pools import SharedShard
from hfmds.domain.tasks import Assignment
from hfmds.errors import InvalidInput, LimitExceeded
from hfmds.service.monitoring.tracing import span


@dataclass(frozen=True, slots=True)
class Fetched:
    """The content of a task, which is in the cache now."""

    shards: tuple[Digest, ...]
    received_bytes: int


class TaskDownloads:
    """Fetches the content of tasks."""

    def __init__(
        self,
        peers: Peers,
        cache: ContentCache,
        transfers: Transfers,
        *,
        device_id: str,
        fetches_plans: bool,
        pool_max_bytes: int = 0,
    ) -> None:
        """Of a snapshot, fetch no more than `pool_max_bytes`; 0 is no limit."""
        self._coordinator, self._store = peers.coordinator, peers.store
        self._to_coordinator = peers.coordinator_retry.call
        self._to_store = peers.store_retry.call
        self._cache = cache
        self._transfers = transfers
        self._device_id = device_id
        self._fetches_plans = fetches_plans
        self._pool_max_bytes = pool_max_bytes
        # The last snapshot and this device's share of it, which never changes.
        self._share: tuple[str, tuple[Digest, ...]] = ("", ())

    async def fetch(
        self, task: Assignment, *, snapshot_id: str | None = None, task_bytes: int = 0
    ) -> Fetched:
        """Fetch the model and a snapshot's shards, and shrink the cache around them.

        Raises LimitExceeded if today's traffic does not leave `task_bytes` for all of the task.
        """
        self._transfers.require(task_bytes)
        shards: tuple[Digest, ...] = ()
        with span("download"):
            received_bytes = await self._fetch_model(task)
            if snapshot_id:
                shards = await self._share_of(task, snapshot_id)
                received_bytes += await self._fetch_shards(task, snapshot_id, shards)
        await asyncio.to_thread(self._cache.evict, {*self._model(task), *shards})
        return Fetched(shards, received_bytes)

    def _model(self, task: Assignment) -> tuple[Digest, ...]:
        """Return the content that every task needs: weights, and a plan if the engine uses one."""
        plan = (task.plan,) if task.plan and self._fetches_plans else ()
        return (task.weights, *plan)

    async def _fetch_model(self, task: Assignment) -> int:
        """Fetch the model; return the bytes that crossed the network."""
        return sum([await self._fetch_from_coordinator(task, d) for d in self._model(task)])

    async def _fetch_from_coordinator(self, task: Assignment, digest: Digest) -> int:
        """Fetch content unless it is here; return the bytes that crossed the network."""
        if await asyncio.to_thread(self._cache.claim, digest):
            return 0
        await asyncio.to_thread(self._cache.make_room, digest.size_bytes, self._model(task))

        async def fetch() -> int:
            self._transfers.require(digest.size_bytes)  # also at each new attempt
            download, content = self._coordinator.download, self._cache.content
            return await self._to_coordinator(download, task.task_id, digest, content)

        return await self._transfers.repeat(fetch)

    async def _share_of(self, task: Assignment, snapshot_id: str) -> tuple[Digest, ...]:
        """Return the shards to train on, in order: all of the snapshot, or a share that fits.

        The seed belongs to the device and is the same in all rounds, so it fetches a shard once.
        """
        if self._share[0] != snapshot_id:
            seed = derive_seed(task.recipe.seed, "share", self._device_id)

            async def get() -> tuple[SharedShard, ...]:
                return await self._store.get_share(
                    snapshot_id, max_bytes=self._pool_max_bytes, balanced=True, seed=seed
                )

            try:
                share = await self._to_store(get)
            except LimitExceeded as error:
                raise LimitExceeded(f"{error}; raise HFMDS_POOL_MAX_BYTES") from error
            if not share:
                raise InvalidInput(f"snapshot {snapshot_id} has no shards")
            self._share = snapshot_id, tuple(shared.shard.digest for shared in share)
        return self._share[1]

    async def _fetch_shards(
        self, task: Assignment, snapshot_id: str, shards: Sequence[Digest]
    ) -> int:
        """Fetch the shards that are not here; return the bytes that crossed the network."""
        lacking = await asyncio.to_thread(
            lambda: [digest for digest in shards if not self._cache.claim(digest)]
        )
        # Counted here, because a broken attempt may have completed some shards.
        received_bytes = sum(digest.size_bytes for digest in lacking)
        if lacking:
            needed = {*self._model(task), *shards}
            await asyncio.to_thread(self._cache.make_room, received_bytes, needed)
            await self._transfers.repeat(lambda: self._download_shards(snapshot_id, lacking))
        return received_bytes

    async def _download_shards(self, snapshot_id: str, digests: Sequence[Digest]) -> int:
        download, content = self._store.download_shards, self._cache.content
        contains = content.blobs.contains  # an earlier attempt may have fetched some
        absent = await asyncio.to_thread(
            lambda: [digest for digest in digests if not contains(digest)]
        )
        self._transfers.require(sum(digest.size_bytes for digest in absent))
        return await self._to_store(download, snapshot_id, absent, content)
