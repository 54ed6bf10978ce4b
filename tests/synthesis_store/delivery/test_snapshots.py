"""Shares and streams of shards over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.pools import Shard, SharedShard, Snapshot
from hfmds.domain.recipe import ModelSpec
from hfmds.errors import InvalidInput, LimitExceeded, NotFound
from hfmds.service.client.channel import translating
from hfmds.storage.blobs import CHUNK_BYTES, FolderBlobs, verify_blob
from hfmds.v1 import synthesis_store_pb2 as pb
from hfmds.wire.conversions.common import digest_message
from hfmds.wire.tensors import encode_batch
from synthesis_store.delivery.hot_shards import HotShards
from synthesis_store.delivery.shares import ShareLimits
from synthesis_store.delivery.snapshots import Snapshots
from synthesis_store.pools.pool_records import BatchKey
from synthesis_store.snapshots.snapshot_records import SnapshotRecords
from tests.synthesis_store.api.test_store_service import Caller, over_grpc
from tests.synthesis_store.examples import SPEC, Store, chunks_of, make_batch

DEVICES = 12


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One for all tests here: they only read."""
    return Store(tmp_path_factory.mktemp("store"), max_blob_bytes=1 << 22)


@pytest.fixture(scope="module")
def snapshot(store: Store) -> Snapshot:
    """A snapshot of a shard of eight samples of each of twelve devices."""
    store.pools.open("pool", SPEC)
    batches = {
        f"device-{n:02}": store.put(f"device-{n:02}", make_batch(n, 8), "pool")
        for n in range(DEVICES)
    }
    return store.seal("pool", **batches)


async def test_without_limits_a_share_is_the_snapshot(
    store: Store, snapshot: Snapshot, tmp_path: Path
) -> None:
    have = {snapshot.shards[3].digest, snapshot.shards[7].digest, digest_of(b"of another")}

    async with over_grpc(store, tmp_path) as device:
        share = await device.client.get_share(snapshot.snapshot_id, have)
        assert [shared.shard for shared in share] == list(snapshot.shards)
        assert [at for at, shared in enumerate(share) if not shared.missing] == [3, 7]


async def test_a_share_is_within_its_limits_and_depends_on_its_seed(
    store: Store, snapshot: Snapshot, tmp_path: Path
) -> None:
    size_bytes = snapshot.shards[0].digest.size_bytes

    async with over_grpc(store, tmp_path) as device:

        async def share(seed: int, **limits: int) -> tuple[SharedShard, ...]:
            return await device.client.get_share(
                snapshot.snapshot_id, balanced=True, seed=seed, **limits
            )

        assert len(await share(1, max_bytes=5 * size_bytes + 1)) == 5
        assert len(await share(1, max_samples=31)) == 3
        assert await share(1, max_samples=31) == await share(1, max_samples=31)
        assert len({await share(seed, max_samples=31) for seed in range(5)}) > 1


async def test_a_share_comes_in_pages(store: Store, snapshot: Snapshot, tmp_path: Path) -> None:
    async with over_grpc(store, tmp_path) as device:
        found: list[str] = []
        request = pb.GetShareRequest(snapshot_id=snapshot.snapshot_id, page_size=5)
        for expected in (5, 5, 2):
            response = await device.raw(device.stub.GetShare, request)
            assert len(response.shards) == expected
            found += [shared.shard.digest.sha256 for shared in response.shards]
            request.page_token = response.next_page_token
        assert not request.page_token
        assert found == [shard.digest.sha256 for shard in snapshot.shards]


class ReadShards(tuple[Shard, ...]):
    """Shards that know how often all of them were looked at."""

    times = 0

    def __iter__(self) -> Iterator[Shard]:
        self.times += 1
        return super().__iter__()


class CountedRecords(SnapshotRecords):
    """Knows what it was asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._known = snapshot
        self.every = ReadShards(snapshot.shards)
        self.asked: list[tuple[int, int | None]] = []

    def snapshot(self, snapshot_id: str, start: int = 0, most: int | None = None) -> Snapshot:
        self.asked.append((start, most))
        whole = not start and most is None
        shards = self.every if whole else self._known.shards[start:][:most]
        return replace(self._known, shards=shards)


def test_pages_of_a_share_without_limits_are_read_page_by_page_and_once(
    store: Store, snapshot: Snapshot
) -> None:
    records = CountedRecords(snapshot)
    snapshots = Snapshots(records, store.blobs, store.app.sealing)
    for _ in range(100):  # devices
        share = [
            shared.shard
            for start in (0, 5, 10)
            for shared in snapshots.share(
                "id", set(), ShareLimits(), 0, balanced=True, start=start, most=5
            )
        ]
        assert share == list(snapshot.shards)
    assert records.asked == [(0, 5), (5, 5), (10, 5)]


def test_a_share_within_limits_is_chosen_once_for_all_its_pages(
    store: Store, snapshot: Snapshot
) -> None:
    records, limits = CountedRecords(snapshot), ShareLimits(max_samples=8 * 9)
    snapshots = Snapshots(records, store.blobs, store.app.sealing)
    pages = [
        snapshots.share("id", set(), limits, 3, balanced=True, start=start, most=2)
        for start in range(0, 12, 2)
    ]
    assert [len(page) for page in pages] == [2, 2, 2, 2, 1, 0]
    assert len({shared.shard for page in pages for shared in page}) == 9
    assert records.asked == [(0, None)]
    looked = records.every.times
    snapshots.share("id", set(), limits, 3, balanced=True, start=0, most=2)
    assert records.every.times == looked
    snapshots.share("id", set(), limits, 4, balanced=True, start=0, most=2)  # of another device
    assert records.every.times == 2 * looked


async def test_the_shards_of_a_snapshot_come_in_pages(
    store: Store, snapshot: Snapshot, tmp_path: Path
) -> None:
    async with over_grpc(store, tmp_path) as device:
        found: list[str] = []
        request = pb.GetSnapshotRequest(snapshot_id=snapshot.snapshot_id, page_size=5)
        for expected in (5, 5, 2):
            response = await device.raw(device.stub.GetSnapshot, request)
            assert response.snapshot.samples == snapshot.samples
            assert len(response.snapshot.shards) == expected
            found += [shard.digest.sha256 for shard in response.snapshot.shards]
            request.page_token = response.next_page_token
        assert not request.page_token
        assert found == [shard.digest.sha256 for shard in snapshot.shards]
        assert await device.client.get_snapshot(snapshot.snapshot_id) == snapshot


async def test_wrong_wishes_are_refused(store: Store, snapshot: Snapshot, tmp_path: Path) -> None:
    async with over_grpc(store, tmp_path) as device:
        share, snapshot_id = device.client.get_share, snapshot.snapshot_id
        with pytest.raises(LimitExceeded, match=r"fits into 10 bytes .* has 8 samples in \d+"):
            await share(snapshot_id, max_bytes=10)
        with pytest.raises(InvalidInput, match="max_bytes"):
            await share(snapshot_id, max_bytes=-1)
        with pytest.raises(InvalidInput, match="max_samples"):
            await share(snapshot_id, max_samples=-1)
        with pytest.raises(NotFound):
            await share("nothing")
        with pytest.raises(InvalidInput, match="have has 20001 shards"):
            await share(snapshot_id, [snapshot.shards[0].digest] * 20_001)
        with pytest.raises(InvalidInput, match="further has 20001 shards"):
            await stream(device, snapshot_id, *[snapshot.shards[0].digest] * 20_002)


async def stream(
    device: Caller, snapshot_id: str, *digests: Digest, offset: int = 0
) -> list[bytes]:
    first, *further = map(digest_message, digests)
    request = pb.DownloadShardRequest(
        snapshot_id=snapshot_id, digest=first, offset=offset, further=further
    )
    with translating(device._peer):
        return [part.data async for part in device.stub.DownloadShard(request)]


async def test_small_shards_come_in_one_chunk(
    store: Store, snapshot: Snapshot, tmp_path: Path
) -> None:
    digests = [shard.digest for shard in snapshot.shards]

    async with over_grpc(store, tmp_path) as device:
        chunks = await stream(device, snapshot.snapshot_id, *digests, offset=10)
        assert len(chunks) == 1
        whole = b"".join(encode_batch(make_batch(n, 8)) for n in range(DEVICES))
        assert chunks[0] == whole[10:]


async def test_a_device_fetches_what_it_lacks(
    store: Store, snapshot: Snapshot, tmp_path: Path
) -> None:
    digests = [shard.digest for shard in snapshot.shards]

    async with over_grpc(store, tmp_path) as device:
        device.content.blobs.put_bytes(encode_batch(make_batch(4, 8)))
        fetched = await device.client.download_shards(snapshot.snapshot_id, digests, device.content)
        assert fetched == sum(d.size_bytes for d in digests) - digests[4].size_bytes
        for digest in digests:
            verify_blob(device.content.blobs, digest)


async def test_one_shard_of_another_snapshot_spoils_a_stream(
    store: Store, snapshot: Snapshot, tmp_path: Path
) -> None:
    store.pools.open("other", replace(SPEC, run_id="run-2"))
    (foreign,) = store.seal("other", a=store.put("a", make_batch(99, 8), "other")).shards
    own = [shard.digest for shard in snapshot.shards]
    wrong_size = Digest(own[1].sha256, own[1].size_bytes + 1)

    async with over_grpc(store, tmp_path) as device:
        for stranger in (foreign.digest, wrong_size):
            with pytest.raises(NotFound, match=f"has no shard {stranger}"):
                await stream(device, snapshot.snapshot_id, own[0], stranger)


# --- what stays in memory -----------------------------------------------------------------------


class CountingBlobs(FolderBlobs):
    """Tells which blobs were read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reads: list[Digest] = []

    def read(
        self, digest: Digest, offset: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        self.reads.append(digest)
        return super().read(digest, offset, chunk_bytes)


def test_shards_stay_in_memory_while_a_device_fetches_some(tmp_path: Path) -> None:
    blobs = CountingBlobs(tmp_path)
    names = [blobs.put_bytes(bytes([n]) * 10) for n in range(4)]
    hot = HotShards(blobs)
    with hot.in_use():
        with hot.in_use():
            assert hot.find(names[:2]) is None
            assert hot.load([names[:2], names[2:]]) == [bytes(10), b"\1" * 10]
            assert blobs.reads == names  # also what comes next
        assert hot.find(names[2:]) == [b"\2" * 10, b"\3" * 10]
        assert hot.size_bytes == 40
    assert hot.size_bytes == 0
    assert hot.find(names[:1]) is None


def test_the_memory_of_shards_is_limited(tmp_path: Path) -> None:
    blobs = CountingBlobs(tmp_path)
    names = [blobs.put_bytes(bytes([n]) * 10) for n in range(4)]
    hot = HotShards(blobs, max_bytes=25)
    with hot.in_use():
        for name in names:
            assert hot.load([[name]]) == [blobs.local_path(name).read_bytes()]
        assert hot.size_bytes == 20
        assert hot.find(names[:1]) is None
        assert hot.find(names[2:]) is not None


async def test_shards_larger_than_a_chunk_are_streamed_between_small_ones(
    store: Store, tmp_path: Path
) -> None:
    model = ModelSpec(channels=3, height=256, width=256, classes=5)
    store.pools.open("large", replace(SPEC, model=model))
    batches = [make_batch(n, samples, model) for n, samples in enumerate((1, 1, 8, 1))]
    named = {}
    for number, batch in enumerate(batches):
        data = encode_batch(batch)
        key = BatchKey("large", f"device-{number}", digest_of(data))
        store.put_chunks(key, 0, chunks_of(data, CHUNK_BYTES))
        named[key.device_id] = key.digest
    sealed = store.seal("large", **named)
    digests = [shard.digest for shard in sealed.shards]

    async with over_grpc(store, tmp_path) as device:
        chunks = await stream(device, sealed.snapshot_id, *digests, offset=100)
        assert b"".join(chunks) == b"".join(map(encode_batch, batches))[100:]
        assert max(map(len, chunks)) == CHUNK_BYTES
        small = digests[0].size_bytes
        assert [len(chunk) for chunk in chunks[:2]] == [2 * small - 100, CHUNK_BYTES]
        assert len(chunks[-1]) == small
