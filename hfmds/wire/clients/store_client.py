"""The callers' side of SynthesisStoreService: values in, values out, hfmds.errors raised."""

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
from hfmds.service.client.channel import Channel, call, open_channel, translating
from hfmds.service.client.peer import Peer
from hfmds.service.monitoring.tracing import call_metadata
from hfmds.service.security.exclusions import Exclusions
from hfmds.storage.blobs import Blobs
from hfmds.v1 import synthesis_store_pb2 as pb
from hfmds.v1.synthesis_store_pb2_grpc import SynthesisStoreServiceStub
from hfmds.wire.chunks import Content, Sender, data_decoder, fetch_all, upload_message
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

_SERVICE = pb.DESCRIPTOR.services_by_name["SynthesisStoreService"].full_name
_CALL_SECONDS = 30.0
_TRANSFER_SECONDS = 600.0


class StoreClient:
    """A device, the coordinator or an operator talking to the synthesis store."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._sender = Sender()
        self._use(open_channel(peer))

    async def close(self) -> None:
        await self._channel.close()

    async def reopen(self) -> None:
        """Make further calls with the certificate that is there by now; those under way end."""
        old = self._channel
        self._use(open_channel(self._peer))
        await old.close(_TRANSFER_SECONDS)

    def _use(self, channel: Channel) -> None:
        """Make further calls on this channel."""
        self._channel = channel
        self._stub = SynthesisStoreServiceStub(channel)
        # Content goes by hand, with as few copies as at the server.
        self._download = channel.unary_stream(
            f"/{_SERVICE}/DownloadShard",
            request_serializer=pb.DownloadShardRequest.SerializeToString,
            response_deserializer=data_decoder(pb.DownloadShardResponse.FromString),
        )
        self._put = channel.stream_unary(
            f"/{_SERVICE}/PutBatch",  # of requests that are serialised
            response_deserializer=pb.PutBatchResponse.FromString,
        )

    async def open_pool(
        self, pool_id: str, spec: PoolSpec, referenced_snapshots: Sequence[str] = ()
    ) -> frozenset[str]:
        """Open a pool for one refresh; returns the devices it takes nothing of."""
        request = pb.OpenPoolRequest(
            pool_id=pool_id,
            spec=pool_spec_message(spec),
            referenced_snapshots=referenced_snapshots,
        )
        response = await call(
            self._peer, self._stub.OpenPool, request, timeout_seconds=_CALL_SECONDS
        )
        return frozenset(response.withdrawn_devices)

    async def get_pool(self, pool_id: str) -> PoolStatus:
        """A pool: its state, and what is in it."""
        request = pb.GetPoolRequest(pool_id=pool_id)
        response = await call(
            self._peer, self._stub.GetPool, request, timeout_seconds=_CALL_SECONDS
        )
        return pool_from(response.pool)

    async def put_batch(
        self,
        pool_id: str,
        device_id: str,
        batch: Digest,
        blobs: Blobs,
        weights: Digest | None = None,
    ) -> int:
        """Put a device's batch into the pool; returns the bytes that crossed the network.

        With the weights it was made with, the store refuses it unless they are the pool's.
        """

        async def query() -> UploadState:
            request = pb.QueryBatchRequest(
                pool_id=pool_id, device_id=device_id, batch=digest_message(batch)
            )
            response = await call(
                self._peer, self._stub.QueryBatch, request, timeout_seconds=_CALL_SECONDS
            )
            return UploadState(response.offset, response.complete)

        async def upload(offset: int, chunks: AsyncIterator[bytes]) -> bool:
            async def requests() -> AsyncIterator[bytes]:
                header = pb.PutBatchHeader(
                    pool_id=pool_id,
                    device_id=device_id,
                    batch=digest_message(batch),
                    offset=offset,
                    weights=digest_message(weights) if weights else None,
                )
                yield pb.PutBatchRequest(header=header).SerializeToString()
                async for chunk in chunks:
                    yield upload_message(chunk)

            response = await call(
                self._peer, self._put, requests(), timeout_seconds=_TRANSFER_SECONDS
            )
            return bool(response.already_present)

        return await self._sender.send(blobs, batch, query, upload)

    async def seal_pool(
        self, pool_id: str, contributions: Sequence[Contribution]
    ) -> tuple[Snapshot, tuple[Contribution, ...]]:
        """Seal the named batches; the snapshot, without shards, and those not in the pool."""
        request = pb.SealPoolRequest(
            pool_id=pool_id, contributions=map(contribution_message, contributions)
        )
        response = await call(
            self._peer, self._stub.SealPool, request, timeout_seconds=_TRANSFER_SECONDS
        )
        return snapshot_from(response.snapshot), tuple(map(contribution_from, response.missing))

    async def get_snapshot(self, snapshot_id: str) -> Snapshot:
        """A snapshot with its shards."""
        shards: list[Shard] = []
        request = pb.GetSnapshotRequest(snapshot_id=snapshot_id)
        while True:
            response = await call(
                self._peer, self._stub.GetSnapshot, request, timeout_seconds=_CALL_SECONDS
            )
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
        """The shards of a snapshot that fit the limits, and which of them are not here; 0: any."""
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
            response = await call(
                self._peer, self._stub.GetShare, request, timeout_seconds=_CALL_SECONDS
            )
            shards += map(shared_shard_from, response.shards)
            if not response.next_page_token:
                return tuple(shards)
            request.page_token = response.next_page_token

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

    async def download_shards(
        self, snapshot_id: str, digests: Sequence[Digest], content: Content
    ) -> int:
        """Bring shards here that are not here; returns the bytes that crossed the network."""

        async def chunks(
            lacking: Sequence[Digest], offset: int
        ) -> AsyncGenerator[bytes | memoryview, None]:
            first, *further = map(digest_message, lacking)
            request = pb.DownloadShardRequest(
                snapshot_id=snapshot_id, digest=first, offset=offset, further=further
            )
            with translating(self._peer):
                async for data in self._download(
                    request, timeout=_TRANSFER_SECONDS, metadata=call_metadata()
                ):
                    yield data

        return await fetch_all(content, digests, chunks)

    # --- who is shut out ------------------------------------------------------------------------

    async def set_exclusions(self, version: str, exclusions: Exclusions | None = None) -> str:
        """Say who is shut out, or only which list is the newest; names the one it has then."""
        request = pb.SetExclusionsRequest(version=version)
        if exclusions is not None:
            request.exclusions.CopyFrom(exclusions_message(exclusions))
        response = await call(
            self._peer, self._stub.SetExclusions, request, timeout_seconds=_CALL_SECONDS
        )
        return str(response.version)

    # --- keeping and giving up ------------------------------------------------------------------

    async def release_run(self, run_id: str) -> int:
        """Give up what a run has; returns how many snapshots that are."""
        request = pb.ReleaseRunRequest(run_id=run_id)
        response = await call(
            self._peer, self._stub.ReleaseRun, request, timeout_seconds=_CALL_SECONDS
        )
        return int(response.snapshots)

    async def collect_snapshots(self, *, dry_run: bool = False) -> Collected:
        """Remove what nobody needs, or only say what that is."""
        request = pb.CollectSnapshotsRequest(dry_run=dry_run)
        response = await call(
            self._peer, self._stub.CollectSnapshots, request, timeout_seconds=_TRANSFER_SECONDS
        )
        return Collected(tuple(response.snapshot_ids), response.erased_blobs, response.erased_bytes)

    async def withdraw_device(self, device_id: str, run_id: str = "") -> Withdrawal:
        """Take a device's consent back, for one run or for all."""
        request = pb.WithdrawDeviceRequest(device_id=device_id, run_id=run_id)
        response = await call(
            self._peer, self._stub.WithdrawDevice, request, timeout_seconds=_TRANSFER_SECONDS
        )
        return Withdrawal(response.removed_batches, response.remaining_snapshots)

    async def list_events(self, after_sequence: int = 0) -> tuple[str, tuple[Event, ...]]:
        """The id of the store's event log, and its events after a number, in order."""
        events: list[Event] = []
        request = pb.ListStoreEventsRequest(after_sequence=after_sequence)
        while True:
            response = await call(
                self._peer, self._stub.ListStoreEvents, request, timeout_seconds=_CALL_SECONDS
            )
            if not response.events:
                return response.log_id, tuple(events)
            events += (event_from(response.log_id, message) for message in response.events)
            request.after_sequence = events[-1].sequence
