"""The store over gRPC on loopback, mostly through the typed client of devices."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import update

from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import Collected, PoolState, Withdrawal
from hfmds.errors import (
    Conflict,
    CorruptData,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotFound,
    TooLate,
    WrongState,
)
from hfmds.event_chain import flaw
from hfmds.service.client.channel import call, open_channel
from hfmds.service.client.peer import Peer
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.server.server import GrpcServer
from hfmds.storage.blobs import FolderBlobs, verify_blob
from hfmds.storage.database import write_session
from hfmds.storage.staging import Staging
from hfmds.v1 import synthesis_store_pb2 as pb
from hfmds.v1.synthesis_store_pb2_grpc import SynthesisStoreServiceStub
from hfmds.wire.chunks import Content
from hfmds.wire.clients.store_client import StoreClient
from hfmds.wire.conversions.common import digest_message
from hfmds.wire.conversions.store_calls import contribution_message, pool_spec_message
from hfmds.wire.tensors import encode_batch
from synthesis_store.pools.pool_records import BatchKey
from synthesis_store.tables import RunReferenceRow
from tests.support.waiting import eventually
from tests.synthesis_store.examples import SPEC, Store, make_batch, named, new_servicer

CONTEXT = cast(grpc.aio.ServicerContext, None)


class Caller:
    """A device: the typed client, the bare stub, and content of its own."""

    def __init__(self, address: str, folder: Path) -> None:
        self._peer = Peer("synthesis store", address, "HFMDS_SYNTHESIS_STORE")
        self._channel = open_channel(self._peer)
        self.client = StoreClient(self._peer)
        self.stub = SynthesisStoreServiceStub(self._channel)
        self.content = Content(
            FolderBlobs(folder / "device"), Staging(folder / "fetching", 1 << 20)
        )

    async def close(self) -> None:
        await self.client.close()
        await self._channel.close()

    async def put(self, device_id: str, data: bytes) -> Digest:
        digest = self.content.blobs.put_bytes(data)
        await self.client.put_batch("pool-1", device_id, digest, self.content.blobs)
        return digest

    async def raw(self, method: Any, request: Any) -> Any:
        return await call(self._peer, method, request, timeout_seconds=10)

    async def put_parts(self, *parts: pb.PutBatchRequest) -> Any:
        def requests() -> Iterator[pb.PutBatchRequest]:
            yield from parts

        return await self.raw(self.stub.PutBatch, requests())


@asynccontextmanager
async def over_grpc(store: Store, folder: Path) -> AsyncIterator[Caller]:
    """Serve the store on a free port to a caller with its own folder."""
    server = GrpcServer("127.0.0.1:0", RpcMetrics("store", CollectorRegistry()))
    new_servicer(store).add_to(server)
    await server.start()
    caller = Caller(server.address, folder)
    try:
        yield caller
    finally:
        await caller.close()
        await server.stop(0)


def header(data: bytes, **changes: Any) -> pb.PutBatchRequest:
    fields = {
        "pool_id": "pool-1",
        "device_id": "a",
        "batch": digest_message(digest_of(data)),
        **changes,
    }
    return pb.PutBatchRequest(header=pb.PutBatchHeader(**fields))


def chunk(data: bytes) -> pb.PutBatchRequest:
    return pb.PutBatchRequest(data=data)


async def test_round_trip(store: Store, tmp_path: Path) -> None:
    async with over_grpc(store, tmp_path) as device:
        await device.client.open_pool("pool-2", SPEC)
        data = encode_batch(make_batch(1))
        batch = device.content.blobs.put_bytes(data)
        sent = await device.client.put_batch("pool-2", "a", batch, device.content.blobs)
        assert sent == len(data)
        assert await device.client.put_batch("pool-2", "a", batch, device.content.blobs) == 0
        batches = named(a=batch, b=digest_of(b"unknown"))
        sealed, missing = await device.client.seal_pool("pool-2", batches)
        assert missing == (batches[1],)
        assert await device.client.seal_pool("pool-2", batches) == (sealed, missing)
        snapshot = await device.client.get_snapshot(sealed.snapshot_id)
        assert replace(snapshot, shards=()) == sealed
        (listed,) = await device.client.list_snapshots("run-1")
        assert (listed.snapshot_id, listed.shards) == (sealed.snapshot_id, ())
        (shard,) = snapshot.shards
        device.content.blobs.delete(shard.digest)
        fetch = device.client.download_shards
        assert await fetch(sealed.snapshot_id, [shard.digest], device.content) == len(data)
        assert await fetch(sealed.snapshot_id, [shard.digest], device.content) == 0
        verify_blob(device.content.blobs, shard.digest)


async def test_a_truncated_upload_is_resumed(store: Store, tmp_path: Path) -> None:
    async with over_grpc(store, tmp_path) as device:
        data = encode_batch(make_batch(1))
        with pytest.raises(WrongState):
            await device.put_parts(header(data), chunk(data[:100]))
        query = pb.QueryBatchRequest(
            pool_id="pool-1", device_id="a", batch=digest_message(digest_of(data))
        )
        assert (await device.raw(device.stub.QueryBatch, query)).offset == 100
        batch = await device.put("a", data)
        snapshot, _ = await device.client.seal_pool("pool-1", named(a=batch))
        assert snapshot.samples == 3


async def test_bytes_before_a_hang_up_are_kept(store: Store, tmp_path: Path) -> None:
    data = encode_batch(make_batch(1))
    key = BatchKey("pool-1", "a", digest_of(data))

    async with over_grpc(store, tmp_path) as device:

        async def stalls() -> AsyncIterator[pb.PutBatchRequest]:
            yield header(data)
            yield chunk(data[:100])
            await asyncio.sleep(60)

        upload = device.stub.PutBatch(stalls())
        await eventually(lambda: store.pools.query(key).offset == 100)
        upload.cancel()
        await device.put_parts(header(data, offset=100), chunk(data[100:]))
        assert store.pools.query(key).complete


async def test_a_truncated_download_is_resumed(store: Store, tmp_path: Path) -> None:
    async with over_grpc(store, tmp_path) as device:
        data = encode_batch(make_batch(1))
        shard = await device.put("a", data)
        snapshot, _ = await device.client.seal_pool("pool-1", named(a=shard))
        device.content.blobs.delete(shard)
        device.content.staging.append("fetch", shard, 0, data[:100])
        # Asked from 0 again, the bytes would not fit behind the 100 that are here.
        await device.client.download_shards(snapshot.snapshot_id, [shard], device.content)
        verify_blob(device.content.blobs, shard)


async def test_each_refusal_has_its_status(store: Store, tmp_path: Path) -> None:
    data, other = encode_batch(make_batch(1)), encode_batch(make_batch(2))

    async with over_grpc(store, tmp_path) as device:
        with pytest.raises(CorruptData):
            await device.put_parts(header(data), chunk(data[:-1] + b"\xff"))
        with pytest.raises(LimitExceeded):
            await device.put_parts(header(b"x" * 100_000), chunk(b"x" * 100_000))
        with pytest.raises(InvalidInput, match="not a safetensors file"):
            await device.put("a", b"not safetensors")
        with pytest.raises(NotFound):
            await device.put_parts(header(data, pool_id="pool-9"), chunk(data))
        with pytest.raises(WrongState):
            await device.client.seal_pool("pool-1", named(a=digest_of(data)))
        batch = await device.put("a", data)
        snapshot, _ = await device.client.seal_pool("pool-1", named(a=batch))
        with pytest.raises(TooLate):
            await device.put("b", other)
        with pytest.raises(Conflict):
            await device.client.seal_pool("pool-1", named(a=digest_of(other)))
        with pytest.raises(NotFound):
            await device.client.get_snapshot("unknown")
        with pytest.raises(NotFound):
            await device.client.download_shards(
                snapshot.snapshot_id, [digest_of(b"unknown")], device.content
            )

    assert store.metric("refused_batches_total", reason="sealed") == 1
    assert store.metric("refused_batches_total", reason="unknown_pool") == 1


async def test_the_faults_of_samples_reach_the_device_uncut(store: Store, tmp_path: Path) -> None:
    """With all that can be wrong with each, they are cut so that they fit a header."""
    limits = dict.fromkeys(("psnr_paired_max_db", "psnr_nearest_max_db"), 1.23456)
    limits |= dict.fromkeys(("ssim_paired_max", "ssim_nearest_max"), -0.987654)
    policy = PoolPolicy(**limits, leakage_action="refuse")  # type: ignore[arg-type]
    spec = replace(SPEC, max_samples_per_device=20, policy=policy)
    leaky, other = encode_batch(make_batch(1, 20)), digest_message(digest_of(b"other weights"))

    async with over_grpc(store, tmp_path) as device:
        await device.client.open_pool("pool-2", spec)
        with pytest.raises(InvalidInput) as refusal:
            await device.put_parts(header(leaky, pool_id="pool-2"), chunk(leaky))
        for sample in range(4):
            assert f"sample {sample}: psnr_paired " in str(refusal.value)
        assert str(refusal.value).count("is above -0.9877") == 2 * 4
        assert "; 16 more are not listed" in str(refusal.value)
        with pytest.raises(InvalidInput, match="of round 4"):
            await device.put_parts(header(leaky, weights=other), chunk(leaky))
        assert (await device.client.get_pool("pool-2")).leaking_batches == 1


async def test_an_oversized_batch_is_refused_though_no_chunk_was_sent(
    store: Store, tmp_path: Path
) -> None:
    async with over_grpc(store, tmp_path) as device:

        async def only_the_header() -> AsyncIterator[pb.PutBatchRequest]:
            yield header(b"x" * (5 << 20))
            await asyncio.sleep(60)

        with pytest.raises(LimitExceeded, match="5242880 bytes are announced"):
            await device.raw(device.stub.PutBatch, only_the_header())


@pytest.mark.parametrize("bad", ["", "../etc/passwd", "a/b", ".hidden", "a\x00b", "a" * 129])
async def test_ids_with_path_characters_are_refused(store: Store, tmp_path: Path, bad: str) -> None:
    data = encode_batch(make_batch(1))
    digest = digest_message(digest_of(data))

    async with over_grpc(store, tmp_path) as device:
        spec = pool_spec_message(SPEC)
        contribution = pb.Contribution(device_id=bad, batch=digest)
        stub = device.stub
        requests = [
            (stub.OpenPool, pb.OpenPoolRequest(pool_id=bad, spec=spec)),
            (stub.QueryBatch, pb.QueryBatchRequest(pool_id=bad, device_id="a", batch=digest)),
            (stub.QueryBatch, pb.QueryBatchRequest(pool_id="a", device_id=bad, batch=digest)),
            (stub.SealPool, pb.SealPoolRequest(pool_id=bad)),
            (stub.SealPool, pb.SealPoolRequest(pool_id="a", contributions=[contribution])),
            (stub.GetSnapshot, pb.GetSnapshotRequest(snapshot_id=bad)),
        ]
        for method, request in requests:
            with pytest.raises(InvalidInput, match="is not an id"):
                await device.raw(method, request)
        for changes in ({"pool_id": bad}, {"device_id": bad}):
            with pytest.raises(InvalidInput, match="is not an id"):
                await device.put_parts(header(data, **changes), chunk(data))


async def test_messages_without_their_parts_are_refused_by_name(
    store: Store, tmp_path: Path
) -> None:
    data = encode_batch(make_batch(1))

    async with over_grpc(store, tmp_path) as device:
        with pytest.raises(InvalidInput, match="must begin with its header"):
            await device.put_parts()
        with pytest.raises(InvalidInput, match="must begin with its header"):
            await device.put_parts(chunk(data))
        with pytest.raises(InvalidInput, match=r"data is missing"):
            await device.put_parts(header(data), header(data))
        with pytest.raises(InvalidInput, match=r"data is missing"):
            await device.put_parts(header(data), chunk(b""))
        with pytest.raises(InvalidInput, match="at most 2097152"):
            await device.put_parts(header(data), chunk(bytes(2_097_153)))
        with pytest.raises(InvalidInput, match=r"PutBatchHeader\.batch is missing"):
            await device.put_parts(header(data, batch=None))
        with pytest.raises(InvalidInput, match=r"OpenPoolRequest\.spec is missing"):
            await device.raw(device.stub.OpenPool, pb.OpenPoolRequest(pool_id="p"))
        with pytest.raises(InvalidInput, match=r"Contribution\.batch is missing"):
            await device.raw(
                device.stub.SealPool,
                pb.SealPoolRequest(
                    pool_id="pool-1", contributions=[pb.Contribution(device_id="a")]
                ),
            )

    assert store.held_bytes() == 0


async def test_two_devices_put_at_the_same_time(store: Store, tmp_path: Path) -> None:
    async with over_grpc(store, tmp_path) as device:
        puts = (device.put(name, encode_batch(make_batch(i))) for i, name in enumerate("ab"))
        a, b = await asyncio.gather(*puts)
        snapshot, _ = await device.client.seal_pool("pool-1", named(a=a, b=b))
        assert snapshot.samples == 6


async def test_a_snapshots_shards_are_listed_in_pages(store: Store, tmp_path: Path) -> None:
    store.pools.open("pool-1", SPEC)
    batches = {f"device-{n}": store.put(f"device-{n}", make_batch(n)) for n in range(5)}
    snapshot = store.seal(**batches)

    async with over_grpc(store, tmp_path) as device:
        found: list[list[str]] = []
        request = pb.GetSnapshotRequest(snapshot_id=snapshot.snapshot_id, page_size=2)
        while not found or request.page_token:
            response = await device.raw(device.stub.GetSnapshot, request)
            assert response.snapshot.samples == snapshot.samples
            found.append([shard.digest.sha256 for shard in response.snapshot.shards])
            request.page_token = response.next_page_token
        expected = [shard.digest.sha256 for shard in snapshot.shards]
        assert found == [expected[:2], expected[2:4], expected[4:]]
        for stray in ("9" * 30, "x", "-1"):  # starts over, or is behind the end
            request.page_token = stray
            await device.raw(device.stub.GetSnapshot, request)

    assert store.app.snapshots.get(snapshot.snapshot_id, 1, 2).shards == snapshot.shards[1:3]


async def test_snapshots_are_listed_in_pages(store: Store, tmp_path: Path) -> None:
    sealed = []
    for number in range(5):
        store.pools.open(f"pool-{number}", SPEC)
        sealed.append(
            store.seal(f"pool-{number}", a=store.put("a", make_batch(1), f"pool-{number}"))
        )
    newest_first = [snapshot.snapshot_id for snapshot in reversed(sealed)]

    async with over_grpc(store, tmp_path) as device:
        pages: list[list[str]] = []
        request = pb.ListSnapshotsRequest(run_id="run-1", page_size=2)
        while not pages or request.page_token:
            response = await device.raw(device.stub.ListSnapshots, request)
            pages.append([snapshot.snapshot_id for snapshot in response.snapshots])
            request.page_token = response.next_page_token
        assert pages == [newest_first[:2], newest_first[2:4], newest_first[4:]]


async def test_calls_of_operators_and_the_coordinator(store: Store, tmp_path: Path) -> None:
    async with over_grpc(store, tmp_path) as device:
        client = device.client
        await client.open_pool("pool-2", SPEC, ["snapshot-1"])
        batch = await device.put("a", encode_batch(make_batch(1)))
        pool = await client.get_pool("pool-1")
        assert (pool.state, pool.devices, pool.samples) == (PoolState.OPEN, 1, 3)
        snapshot, _ = await client.seal_pool("pool-1", named(a=batch))
        assert (await client.get_pool("pool-1")).snapshot_id == snapshot.snapshot_id
        assert await client.withdraw_device("a") == Withdrawal(0, remaining_snapshots=1)
        assert await client.open_pool("pool-2", SPEC) == {"a"}
        with pytest.raises(NotAllowed, match="withdrawn"):
            await device.put("a", encode_batch(make_batch(2)))
        assert await client.release_run("run-1") == 1
        expected = Collected((snapshot.snapshot_id,), 1, batch.size_bytes)
        assert await client.collect_snapshots(dry_run=True) == expected
        assert await client.collect_snapshots() == expected
        log_id, events = await client.list_events()
        assert flaw(events, log_id) == ""
        assert [event.kind for event in events] == [
            "pool-opened",
            "pool-opened",
            "pool-sealed",
            "device-withdrawn",
            "pool-abandoned",
            "run-released",
            "snapshot-collected",
            "content-erased",
            "withdrawal-complete",
        ]
        assert '"by":"ipv4:127.0.0.1"' in events[3].details
        assert (await client.list_events(8))[1] == events[8:]

    assert store.held_bytes() == 0


async def test_a_call_that_hung_up_opens_no_pool_behind_the_release_of_its_run(
    store: Store,
) -> None:
    request = pb.OpenPoolRequest(pool_id="late", spec=pool_spec_message(SPEC))
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    servicer = new_servicer(store)
    with write_session(store.engine) as session:
        opening = asyncio.create_task(servicer.OpenPool(request, CONTEXT))
        await asyncio.sleep(0)  # its thread waits for the end of this transaction
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        session.execute(update(RunReferenceRow).values(released=True))
    await asyncio.to_thread(lambda: None)  # the only thread has ended the call
    with pytest.raises(NotFound):
        store.pools.status("late")
    await servicer.OpenPool(request, CONTEXT)  # as by a new run with the same id
    assert store.pools.status("late").state is PoolState.OPEN


class HeldBlobs(FolderBlobs):
    """Content that can be read when the test lets it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.readable, self.asked = threading.Event(), threading.Event()
        self.readable.set()

    def local_path(self, digest: Digest) -> Path:
        self.asked.set()
        assert self.readable.wait(60)
        return super().local_path(digest)

    def hold(self) -> None:
        self.readable.clear()
        self.asked.clear()


async def test_a_store_that_stops_waits_for_the_seal_under_way(tmp_path: Path) -> None:
    blobs = HeldBlobs(tmp_path / "held")
    store = Store(tmp_path, blobs=blobs)
    store.pools.open("pool-1", SPEC)
    batch = store.put("a", encode_batch(make_batch(1)))
    servicer = new_servicer(store)
    blobs.hold()
    sealing = asyncio.create_task(asyncio.to_thread(store.seal, a=batch))  # as housekeeping does
    await asyncio.to_thread(blobs.asked.wait)
    closing = asyncio.create_task(servicer.aclose())
    await asyncio.sleep(0.01)  # a store that does not wait ends now
    assert not closing.done()
    blobs.readable.set()
    await closing
    await asyncio.gather(sealing, return_exceptions=True)


async def test_seals_that_wait_for_another_keep_no_other_call_waiting(tmp_path: Path) -> None:
    blobs = HeldBlobs(tmp_path / "held")
    store = Store(tmp_path, blobs=blobs)
    store.pools.open("pool-1", SPEC)
    batch = contribution_message(*named(a=store.put("a", encode_batch(make_batch(1)))))
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    servicer = new_servicer(store)
    request = pb.SealPoolRequest(pool_id="pool-1", contributions=[batch])
    blobs.hold()  # as if a large pool were being sealed
    seals = [asyncio.create_task(servicer.SealPool(request, CONTEXT)) for _ in range(4)]
    await asyncio.to_thread(blobs.asked.wait)
    async with asyncio.timeout(30):
        answer = await servicer.GetPool(pb.GetPoolRequest(pool_id="pool-1"), CONTEXT)
    assert answer.pool.devices == 1
    blobs.readable.set()
    answers = await asyncio.gather(*seals)
    assert len({answer.snapshot.snapshot_id for answer in answers}) == 1


async def test_a_fleet_that_has_shares_chosen_keeps_no_other_call_waiting(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = store.seal(a=store.put("a", encode_batch(make_batch(1))))
    go_on = threading.Event()

    def slowly(*args: Any, **kwargs: Any) -> list[int]:
        assert go_on.wait(30)
        return [0]

    monkeypatch.setattr("synthesis_store.delivery.snapshots.choose", slowly)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    servicer = new_servicer(store)

    def limited(seed: int) -> pb.GetShareRequest:
        return pb.GetShareRequest(snapshot_id=snapshot.snapshot_id, max_samples=5, seed=seed)

    choices = [asyncio.create_task(servicer.GetShare(limited(n), CONTEXT)) for n in range(4)]
    await asyncio.sleep(0)  # each has begun
    async with asyncio.timeout(30):
        unlimited = pb.GetShareRequest(snapshot_id=snapshot.snapshot_id)
        assert len((await servicer.GetShare(unlimited, CONTEXT)).shards) == 1
    go_on.set()
    assert all(len(answer.shards) == 1 for answer in await asyncio.gather(*choices))
    await servicer.aclose()
