"""The callers' side of SynthesisStoreService: values in, values out, hfmds.errors raised."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from hfmds.digest import Digest
from hfmds.service.channel import call, open_channel, translating
from hfmds.service.peer import Peer
from hfmds.storage.blobs import Blobs
from hfmds.v1 import synthesis_store_pb2 as pb
from hfmds.v1.synthesis_store_pb2_grpc import SynthesisStoreServiceStub
from hfmds.wire.chunks import Content, fetch, send
from hfmds.wire.messages import digest_message
from hfmds.wire.snapshots import (
    contribution_from,
    contribution_message,
    pool_spec_message,
    snapshot_from,
)
from hfmds.wire.types import Contribution, PoolSpec, Snapshot, UploadState

_CALL_SECONDS = 30.0
_TRANSFER_SECONDS = 600.0


class StoreClient:
    """A device, the coordinator or an operator talking to the synthesis store."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._channel = open_channel(peer)
        self._stub = SynthesisStoreServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def open_pool(self, pool_id: str, spec: PoolSpec) -> None:
        """Open a pool for one refresh."""
        request = pb.OpenPoolRequest(pool_id=pool_id, spec=pool_spec_message(spec))
        await call(self._peer, self._stub.OpenPool, request, timeout_seconds=_CALL_SECONDS)

    async def put_batch(self, pool_id: str, device_id: str, batch: Digest, blobs: Blobs) -> int:
        """Put a device's batch into the pool; returns the bytes that crossed the network."""

        async def query() -> UploadState:
            request = pb.QueryBatchRequest(
                pool_id=pool_id, device_id=device_id, batch=digest_message(batch)
            )
            response = await call(
                self._peer, self._stub.QueryBatch, request, timeout_seconds=_CALL_SECONDS
            )
            return UploadState(response.offset, response.complete)

        async def upload(offset: int, chunks: AsyncIterator[bytes]) -> None:
            async def requests() -> AsyncIterator[pb.PutBatchRequest]:
                header = pb.PutBatchHeader(
                    pool_id=pool_id,
                    device_id=device_id,
                    batch=digest_message(batch),
                    offset=offset,
                )
                yield pb.PutBatchRequest(header=header)
                async for chunk in chunks:
                    yield pb.PutBatchRequest(data=chunk)

            await call(
                self._peer, self._stub.PutBatch, requests(), timeout_seconds=_TRANSFER_SECONDS
            )

        return await send(blobs, batch, query, upload)

    async def seal_pool(
        self, pool_id: str, contributions: Sequence[Contribution]
    ) -> tuple[Snapshot, tuple[Contribution, ...]]:
        """Seal the named batches; the snapshot, and those that are not in the pool."""
        request = pb.SealPoolRequest(
            pool_id=pool_id, contributions=map(contribution_message, contributions)
        )
        response = await call(
            self._peer, self._stub.SealPool, request, timeout_seconds=_TRANSFER_SECONDS
        )
        return snapshot_from(response.snapshot), tuple(map(contribution_from, response.missing))

    async def get_snapshot(self, snapshot_id: str) -> Snapshot:
        """A snapshot with its shards."""
        request = pb.GetSnapshotRequest(snapshot_id=snapshot_id)
        response = await call(
            self._peer, self._stub.GetSnapshot, request, timeout_seconds=_CALL_SECONDS
        )
        return snapshot_from(response.snapshot)

    async def list_snapshots(self, run_id: str = "") -> tuple[Snapshot, ...]:
        """All snapshots, or one run's, newest first and without shards."""
        snapshots: list[Snapshot] = []
        request = pb.ListSnapshotsRequest(run_id=run_id)
        while True:
            response = await call(
                self._peer, self._stub.ListSnapshots, request, timeout_seconds=_CALL_SECONDS
            )
            snapshots += map(snapshot_from, response.snapshots)
            if not response.next_page_token:
                return tuple(snapshots)
            request.page_token = response.next_page_token

    async def download_shard(self, snapshot_id: str, digest: Digest, content: Content) -> int:
        """Bring a shard here; returns the bytes that crossed the network."""

        async def chunks(offset: int) -> AsyncGenerator[bytes, None]:
            request = pb.DownloadShardRequest(
                snapshot_id=snapshot_id, digest=digest_message(digest), offset=offset
            )
            with translating(self._peer):
                async for part in self._stub.DownloadShard(request, timeout=_TRANSFER_SECONDS):
                    yield part.data

        return await fetch(content, digest, chunks)
