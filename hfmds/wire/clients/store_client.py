"""The client of SynthesisStoreService: takes and returns values, raises hfmds.errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import replace

from hfmds.domain.digest import Digest
from hfmds.domain.pools import (
    Collected,
    Contribution,
    PoolSpec,
    PoolStatus,
    Shard,
    SharedShard,
    Snapshot,
    Withdrawal,
)
from hfmds.domain.tasks import UploadState
from hfmds.event_chain import Event
from hfmds.service.client.peer import Peer
from hfmds.service.security.exclusions import Exclusions
from hfmds.storage.blobs import Blobs
from hfmds.v1 import synthesis_store_pb2 as pb
from hfmds.v1.synthesis_store_pb2_grpc import SynthesisStoreServiceStub
from hfmds.wire.chunks import Content, Sender, fetch_all
from hfmds.wire.clients.service_client import TRANSFER_SECONDS, ServiceClient
from hfmds.wire.conversions.common import digest_message
from hfmds.wire.conversions.events import event_from
from hfmds.wire.conversions.fleet_calls import exclusions_message
from hfmds.wire.conversions.store_calls import (
    contribution_from,
    contribution_message,
    pool_from,
    pool_spec_message,
    shared_shard_from,
    snapshot_from,
)


class StoreClient(ServiceClient):
    """Calls of a device, the coordinator or an operator to the synthesis store."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer, SynthesisStoreServiceStub)
        self._sender = Sender()

    async def open_pool(
        self, pool_id: str, spec: PoolSpec, referenced_snapshots: Sequence[str] = ()
    ) -> frozenset[str]:
        """Open a pool for one refresh; return the devices whose batches it refuses."""
        request = pb.OpenPoolRequest(
            pool_id=pool_id,
            spec=pool_spec_message(spec),
            referenced_snapshots=referenced_snapshots,
        )
        response = await self._call(self._stub.OpenPool, request)
        return frozenset(response.withdrawn_devices)

    async def get_pool(self, pool_id: str) -> PoolStatus:
        """Return a pool's state and contents."""
        request = pb.GetPoolRequest(pool_id=pool_id)
        response = await self._call(self._stub.GetPool, request)
        return pool_from(response.pool)

    async def put_batch(
        self,
        pool_id: str,
        device_id: str,
        batch: Digest,
        blobs: Blobs,
        weights: Digest | None = None,
    ) -> int:
        """Put a device's batch into the pool; return the bytes that crossed the network.

        `weights` is the model that made the batch. The store refuses the batch unless it is the
        pool's model.
        """

        async def query() -> UploadState:
            request = pb.QueryBatchRequest(
                pool_id=pool_id, device_id=device_id, batch=digest_message(batch)
            )
            response = await self._call(self._stub.QueryBatch, request)
            return UploadState(response.offset, response.complete)

        async def upload(offset: int, chunks: AsyncIterator[bytes]) -> int:
            async def requests() -> AsyncIterator[pb.PutBatchRequest]:
                header = pb.PutBatchHeader(
                    pool_id=pool_id,
                    device_id=device_id,
                    batch=digest_message(batch),
                    offset=offset,
                    weights=digest_message(weights) if weights else None,
                )
                yield pb.PutBatchRequest(header=header)
                async for chunk in chunks:
                    yield pb.PutBatchRequest(data=chunk)

            response = await self._call(
                self._stub.PutBatch, requests(), timeout_seconds=TRANSFER_SECONDS
            )
            return 0 if response.already_present else batch.size_bytes

        return await self._sender.send(blobs, batch, query, upload)

    async def seal_pool(
        self, pool_id: str, contributions: Sequence[Contribution]
    ) -> tuple[Snapshot, tuple[Contribution, ...]]:
        """Seal the named batches; return the snapshot without shards, and the missing batches."""
        request = pb.SealPoolRequest(
            pool_id=pool_id, contributions=map(contribution_message, contributions)
        )
        response = await self._call(self._stub.SealPool, request, timeout_seconds=TRANSFER_SECONDS)
        return snapshot_from(response.snapshot), tuple(map(contribution_from, response.missing))

    async def get_snapshot(self, snapshot_id: str) -> Snapshot:
        """Return a snapshot with its shards."""
        shards: list[Shard] = []
        request = pb.GetSnapshotRequest(snapshot_id=snapshot_id)
        while True:
            response = await self._call(self._stub.GetSnapshot, request)
            snapshot = snapshot_from(response.snapshot)
            shards += snapshot.shards
            if not response.next_page_token:
                return replace(snapshot, shards=tuple(shards))
            request.page_token = response.next_page_token

    async def get_share(
        self,
        snapshot_id: str,
        have: Iterable[Digest] = (),
        *,
        max_bytes: int = 0,
        max_samples: int = 0,
        balanced: bool = False,
        seed: int = 0,
    ) -> tuple[SharedShard, ...]:
        """Return the shards of a snapshot that fit the limits, and which of them `have` lacks.

        A limit of 0 is no limit.
        """
        shards: list[SharedShard] = []
        request = pb.GetShareRequest(
            snapshot_id=snapshot_id,
            have=map(digest_message, have),
            max_bytes=max_bytes,
            max_samples=max_samples,
            balanced=balanced,
            seed=seed,
        )
        while True:
            response = await self._call(self._stub.GetShare, request)
            shards += map(shared_shard_from, response.shards)
            if not response.next_page_token:
                return tuple(shards)
            request.page_token = response.next_page_token

    async def list_snapshots(self, run_id: str = "") -> tuple[Snapshot, ...]:
        """Return all snapshots, or those of one run, newest first and without shards."""
        snapshots: list[Snapshot] = []
        request = pb.ListSnapshotsRequest(run_id=run_id)
        while True:
            response = await self._call(self._stub.ListSnapshots, request)
            snapshots += map(snapshot_from, response.snapshots)
            if not response.next_page_token:
                return tuple(snapshots)
            request.page_token = response.next_page_token

    async def download_shards(
        self, snapshot_id: str, digests: Sequence[Digest], content: Content
    ) -> int:
        """Fetch the shards that are not here; return the bytes that crossed the network."""

        async def chunks(lacking: Sequence[Digest], offset: int) -> AsyncGenerator[bytes, None]:
            first, *further = map(digest_message, lacking)
            request = pb.DownloadShardRequest(
                snapshot_id=snapshot_id, digest=first, offset=offset, further=further
            )
            responses = self._stream(
                self._stub.DownloadShard, request, timeout_seconds=TRANSFER_SECONDS
            )
            async for response in responses:
                yield response.data

        return await fetch_all(content, digests, chunks)

    # --- revocations ----------------------------------------------------------------------------

    async def set_exclusions(self, version: str, exclusions: Exclusions | None = None) -> str:
        """Send the list of excluded identities, or only the newest list's version.

        Returns the version that the store has now.
        """
        request = pb.SetExclusionsRequest(version=version)
        if exclusions is not None:
            request.exclusions.CopyFrom(exclusions_message(exclusions))
        response = await self._call(self._stub.SetExclusions, request)
        return str(response.version)

    # --- retention ------------------------------------------------------------------------------

    async def release_run(self, run_id: str) -> int:
        """Release the snapshots that a run holds; return their number."""
        request = pb.ReleaseRunRequest(run_id=run_id)
        response = await self._call(self._stub.ReleaseRun, request)
        return int(response.snapshots)

    async def collect_snapshots(self, *, dry_run: bool = False) -> Collected:
        """Remove snapshots that nothing needs; with `dry_run` only report them."""
        request = pb.CollectSnapshotsRequest(dry_run=dry_run)
        response = await self._call(
            self._stub.CollectSnapshots, request, timeout_seconds=TRANSFER_SECONDS
        )
        return Collected(tuple(response.snapshot_ids), response.erased_blobs, response.erased_bytes)

    async def withdraw_device(self, device_id: str, run_id: str = "") -> Withdrawal:
        """Withdraw a device's consent for one run, or for all runs."""
        request = pb.WithdrawDeviceRequest(device_id=device_id, run_id=run_id)
        response = await self._call(
            self._stub.WithdrawDevice, request, timeout_seconds=TRANSFER_SECONDS
        )
        return Withdrawal(response.removed_batches, response.remaining_snapshots)

    async def list_events(self, after_sequence: int = 0) -> tuple[str, tuple[Event, ...]]:
        """Return the id of the store's event log, and its events after a number, in order."""
        events: list[Event] = []
        request = pb.ListStoreEventsRequest(after_sequence=after_sequence)
        while True:
            response = await self._call(self._stub.ListStoreEvents, request)
            if not response.events:
                return response.log_id, tuple(events)
            events += (event_from(response.log_id, message) for message in response.events)
            request.after_sequence = events[-1].sequence
