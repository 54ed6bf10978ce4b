"""SynthesisStoreService: each method converts, calls, converts. The proto says what calls mean."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import grpc

from hfmds.domain.devices import require_id
from hfmds.errors import InvalidInput
from hfmds.service.security.access import DEVICE, OPERATOR, OWNER, SERVICE, VIEWER
from hfmds.service.security.caller import caller
from hfmds.service.server.server import GrpcServer
from hfmds.v1 import common_pb2
from hfmds.v1 import synthesis_store_pb2 as pb
from hfmds.v1 import synthesis_store_pb2_grpc as pb_grpc
from hfmds.wire.chunks import MAX_DIGESTS, split_upload
from hfmds.wire.conversions.common import digest_from, require_count, require_part
from hfmds.wire.conversions.events import event_message
from hfmds.wire.conversions.fleet_calls import exclusions_from, require_version
from hfmds.wire.conversions.store_calls import (
    contribution_from,
    contribution_message,
    pool_message,
    pool_spec_from,
    shard_message,
    shared_shard_message,
    snapshot_message,
)
from hfmds.wire.pages import ASKED_FOR_A_PAGE, first_page, first_page_of
from synthesis_store.contributors.exclusion_list import ExclusionList
from synthesis_store.delivery.shares import ShareLimits
from synthesis_store.delivery.snapshots import Snapshots
from synthesis_store.events import StoreEvents
from synthesis_store.pools.pool_records import BatchKey
from synthesis_store.pools.pools import Pools
from synthesis_store.retention.data_retention import DataRetention

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["SynthesisStoreService"].full_name
ACCESS = {
    "OpenPool": SERVICE,
    "SealPool": SERVICE,
    "ReleaseRun": SERVICE | OWNER,
    "QueryBatch": DEVICE,
    "PutBatch": DEVICE,
    "GetShare": DEVICE,
    "GetPool": VIEWER | SERVICE,
    "GetSnapshot": VIEWER | SERVICE,
    "ListSnapshots": VIEWER | SERVICE,
    "DownloadShard": DEVICE | VIEWER | SERVICE,
    "CollectSnapshots": OPERATOR,
    "WithdrawDevice": OWNER,
    "ListStoreEvents": VIEWER,
    "SetExclusions": SERVICE,
}

_MAX_EVENTS = 1000  # in one answer
_POSITION_DIGITS = 10  # a position has fewer


class StoreServicer(pb_grpc.SynthesisStoreServiceServicer):
    """The service over the store's parts, one for each group of calls."""

    def __init__(
        self,
        pools: Pools,
        snapshots: Snapshots,
        retention: DataRetention,
        events: StoreEvents,
        exclusions: ExclusionList,
    ) -> None:
        self._pools = pools
        self._snapshots = snapshots
        self._retention = retention
        self._events = events
        self._exclusions = exclusions
        # Choosing among ten thousand shards takes 0.15 s. In a thread of its own, a fleet that
        # does so leaves the few other threads to other calls.
        self._choosing = ThreadPoolExecutor(1, "choosing")

    def add_to(self, server: GrpcServer) -> None:
        """Add this service to a server."""
        server.add(pb_grpc.add_SynthesisStoreServiceServicer_to_server, self, SERVICE_NAME, ACCESS)

    async def aclose(self) -> None:
        """Stop sealing, after the server has stopped. Returns when no seal is under way."""
        self._choosing.shutdown(wait=False, cancel_futures=True)
        await self._snapshots.close()

    async def OpenPool(
        self, request: pb.OpenPoolRequest, context: grpc.aio.ServicerContext
    ) -> pb.OpenPoolResponse:
        require_part(request, "spec")
        pool_id = require_id(request.pool_id, "pool_id")
        referenced = [
            require_id(name, "referenced_snapshots") for name in request.referenced_snapshots
        ]
        spec = pool_spec_from(request.spec)
        cancelled = threading.Event()
        try:
            withdrawn = await asyncio.to_thread(
                self._pools.open, pool_id, spec, referenced, cancelled
            )
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return pb.OpenPoolResponse(withdrawn_devices=withdrawn)

    async def GetPool(
        self, request: pb.GetPoolRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetPoolResponse:
        pool_id = require_id(request.pool_id, "pool_id")
        return pb.GetPoolResponse(
            pool=pool_message(await asyncio.to_thread(self._pools.status, pool_id))
        )

    async def QueryBatch(
        self, request: pb.QueryBatchRequest, context: grpc.aio.ServicerContext
    ) -> pb.QueryBatchResponse:
        state = await asyncio.to_thread(self._pools.query, _key_from(request))
        return pb.QueryBatchResponse(offset=state.offset, complete=state.complete)

    async def PutBatch(
        self,
        request_iterator: AsyncIterator[pb.PutBatchRequest],
        context: grpc.aio.ServicerContext,
    ) -> pb.PutBatchResponse:
        header, chunks = await split_upload(request_iterator)
        weights = digest_from(header.weights) if header.HasField("weights") else None
        present = await self._pools.put(_key_from(header), header.offset, chunks, weights)
        return pb.PutBatchResponse(already_present=present)

    async def SealPool(
        self, request: pb.SealPoolRequest, context: grpc.aio.ServicerContext
    ) -> pb.SealPoolResponse:
        pool_id = require_id(request.pool_id, "pool_id")
        named = [contribution_from(item) for item in request.contributions]
        sealed = await self._snapshots.seal(pool_id, named)
        return pb.SealPoolResponse(
            snapshot=snapshot_message(replace(sealed.snapshot, shards=())),
            missing=map(contribution_message, sealed.missing),
        )

    async def GetSnapshot(
        self, request: pb.GetSnapshotRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetSnapshotResponse:
        snapshot_id = require_id(request.snapshot_id, "snapshot_id")
        start = _position(request.page_token)
        snapshot = await asyncio.to_thread(
            self._snapshots.get, snapshot_id, start, ASKED_FOR_A_PAGE
        )
        shards, has_more = first_page_of(map(shard_message, snapshot.shards), request.page_size)
        described = snapshot_message(replace(snapshot, shards=()))
        described.shards.extend(shards)
        token = str(start + len(shards)) if has_more else ""
        return pb.GetSnapshotResponse(snapshot=described, next_page_token=token)

    async def ListSnapshots(
        self, request: pb.ListSnapshotsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListSnapshotsResponse:
        run_id = require_id(request.run_id, "run_id") if request.run_id else None
        snapshots = await asyncio.to_thread(
            self._snapshots.list, run_id, request.page_token, ASKED_FOR_A_PAGE
        )
        page, has_more = first_page_of(map(snapshot_message, snapshots), request.page_size)
        token = page[-1].snapshot_id if has_more else ""
        return pb.ListSnapshotsResponse(snapshots=page, next_page_token=token)

    async def GetShare(
        self, request: pb.GetShareRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetShareResponse:
        require_count(request, 0, "max_bytes", "max_samples")
        snapshot_id = require_id(request.snapshot_id, "snapshot_id")
        have = set(map(digest_from, _bounded(request.have, "have")))
        limits = ShareLimits(request.max_bytes, request.max_samples)
        start = _position(request.page_token)
        choose = partial(
            self._snapshots.share,
            snapshot_id,
            have,
            limits,
            request.seed,
            balanced=request.balanced,
            start=start,
            most=ASKED_FOR_A_PAGE,
        )
        thread = None if limits == ShareLimits() else self._choosing
        shared = await asyncio.get_running_loop().run_in_executor(thread, choose)
        shards, has_more = first_page_of(map(shared_shard_message, shared), request.page_size)
        token = str(start + len(shards)) if has_more else ""
        return pb.GetShareResponse(shards=shards, next_page_token=token)

    async def DownloadShard(
        self, request: pb.DownloadShardRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.DownloadShardResponse]:
        require_part(request, "digest")
        snapshot_id = require_id(request.snapshot_id, "snapshot_id")
        names = (request.digest, *_bounded(request.further, "further"))
        digests = [digest_from(name) for name in names]
        async for pieces in self._snapshots.stream(snapshot_id, digests, request.offset):
            yield pb.DownloadShardResponse(data=b"".join(pieces))

    async def ReleaseRun(
        self, request: pb.ReleaseRunRequest, context: grpc.aio.ServicerContext
    ) -> pb.ReleaseRunResponse:
        run_id = require_id(request.run_id, "run_id")
        return pb.ReleaseRunResponse(
            snapshots=await asyncio.to_thread(self._retention.release, run_id, caller(context))
        )

    async def CollectSnapshots(
        self, request: pb.CollectSnapshotsRequest, context: grpc.aio.ServicerContext
    ) -> pb.CollectSnapshotsResponse:
        collected = await asyncio.to_thread(
            self._retention.collect, caller(context), dry_run=request.dry_run
        )
        return pb.CollectSnapshotsResponse(
            snapshot_ids=collected.snapshot_ids,
            erased_blobs=collected.erased_blobs,
            erased_bytes=collected.erased_bytes,
        )

    async def WithdrawDevice(
        self, request: pb.WithdrawDeviceRequest, context: grpc.aio.ServicerContext
    ) -> pb.WithdrawDeviceResponse:
        device_id = require_id(request.device_id, "device_id")
        run_id = require_id(request.run_id, "run_id") if request.run_id else ""
        withdrawal = await asyncio.to_thread(
            self._retention.withdraw, device_id, run_id, caller(context)
        )
        return pb.WithdrawDeviceResponse(
            removed_batches=withdrawal.removed_batches,
            remaining_snapshots=withdrawal.remaining_snapshots,
        )

    async def ListStoreEvents(
        self, request: pb.ListStoreEventsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListStoreEventsResponse:
        events = await asyncio.to_thread(self._events.list, request.after_sequence, _MAX_EVENTS)
        page = first_page([*map(event_message, events)], request.page_size)
        return pb.ListStoreEventsResponse(log_id=self._events.log_id, events=page)

    async def SetExclusions(
        self, request: pb.SetExclusionsRequest, context: grpc.aio.ServicerContext
    ) -> pb.SetExclusionsResponse:
        if request.HasField("exclusions"):
            exclusions = exclusions_from(request.exclusions)
            version = require_version(request.version)
            await asyncio.to_thread(self._exclusions.replace, version, exclusions)
        applied = await asyncio.to_thread(self._exclusions.version)
        return pb.SetExclusionsResponse(version=applied)


def _position(token: str) -> int:
    """Return where the next page of shards begins. An unknown token begins at the first shard."""
    return int(token) if token.isdecimal() and len(token) < _POSITION_DIGITS else 0


def _bounded(digests: Sequence[common_pb2.Digest], name: str) -> Sequence[common_pb2.Digest]:
    if len(digests) > MAX_DIGESTS:
        raise InvalidInput(f"{name} has {len(digests)} shards; send at most {MAX_DIGESTS}")
    return digests


def _key_from(message: pb.QueryBatchRequest | pb.PutBatchHeader) -> BatchKey:
    require_part(message, "batch")
    return BatchKey(
        pool_id=require_id(message.pool_id, "pool_id"),
        device_id=require_id(message.device_id, "device_id"),
        digest=digest_from(message.batch),
    )
