"""Two stores on one PostgreSQL and one S3 serve one dataset. The test kills one of them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hfmds.cli.main import main
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.pools import PoolState
from hfmds.domain.recipe import ModelSpec
from hfmds.errors import NotAllowed, NotFound, Unavailable
from hfmds.service.client.peer import Peer
from hfmds.storage.blobs import FolderBlobs, verify_blob
from hfmds.storage.staging import Staging
from hfmds.wire.chunks import Content
from hfmds.wire.clients.store_client import StoreClient
from hfmds.wire.tensors import encode_batch
from tests.support.programs import Program, Programs
from tests.support.waiting import eventually
from tests.synthesis_store.examples import SPEC, make_batch, named

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# Larger than the buffers of a connection, so that a kill interrupts the transfer.
MODEL = ModelSpec(channels=3, height=96, width=96, classes=5)
LARGE = replace(SPEC, model=MODEL, max_samples_per_device=128)
DEVICES = "abcd"


@dataclass
class Replica:
    """A replica of the store."""

    start: Callable[[], Program]

    def __post_init__(self) -> None:
        self.program = self.start()

    @property
    def address(self) -> str:
        return self.program.address("grpc")

    def kill(self) -> None:
        assert self.program.stop(signal.SIGKILL) == -signal.SIGKILL

    def start_again(self) -> None:
        self.program = self.start()


@pytest.fixture
def replicas(tmp_path: Path, postgres_url: str, s3_blobs_url: str) -> Iterator[list[Replica]]:
    assert main(["database", "upgrade", "synthesis_store", "--database-url", postgres_url]) == 0
    with Programs(tmp_path) as programs:

        def starting(name: str) -> Callable[[], Program]:
            return lambda: programs.start(
                name,
                "synthesis_store",
                listen="127.0.0.1:0",
                data_dir=str(tmp_path / f"{name}-data"),
                database_url=postgres_url,
                blobs_url=s3_blobs_url,
                collect_every_seconds="0.5",
                look_every_seconds="0.5",
            )

        yield [Replica(starting(name)) for name in ("first", "second")]


@asynccontextmanager
async def client_of(*replicas: Replica) -> AsyncIterator[StoreClient]:
    """Open a client with the addresses of these stores."""
    address = ",".join(replica.address for replica in replicas)
    client = StoreClient(Peer("synthesis store", address, "HFMDS_STORE"))
    try:
        yield client
    finally:
        await client.close()


class Meddling(Staging):
    """Content that runs an action once, at the first bytes."""

    intercept: Callable[[], None] | None = None

    def append(self, owner: str, digest: Digest, offset: int, data: bytes) -> int:
        end = super().append(owner, digest, offset, data)
        if self.intercept:
            intercept, self.intercept = self.intercept, None
            intercept()
        return end


def content_in(folder: Path) -> tuple[Content, Meddling]:
    staging = Meddling(folder / "staging", 1 << 24)
    return Content(FolderBlobs(folder / "blobs"), staging), staging


async def test_two_replicas_of_the_store_serve_the_same_content(
    replicas: list[Replica], tmp_path: Path
) -> None:
    first, second = replicas
    devices, _ = content_in(tmp_path / "devices")
    batches = {
        name: devices.blobs.put_bytes(encode_batch(make_batch(n, 100, MODEL)))
        for n, name in enumerate(DEVICES)
    }

    async with client_of(first) as one, client_of(second) as two:
        # Both stores serve each batch, and either store can seal the pool.
        await one.open_pool("pool-1", LARGE)
        for client, name in zip((one, two, one, two), DEVICES, strict=True):
            await client.put_batch("pool-1", name, batches[name], devices.blobs)
        assert (await one.get_pool("pool-1")).devices == len(DEVICES)
        assert await one.put_batch("pool-1", "b", batches["b"], devices.blobs) == 0
        sealed = await two.seal_pool("pool-1", named(**batches))
        assert sealed[1] == ()
        snapshot = await two.get_snapshot(sealed[0].snapshot_id)
        assert [shard.digest for shard in snapshot.shards] == list(batches.values())
        assert (await one.get_pool("pool-1")).state is PoolState.SEALED
        assert await one.seal_pool("pool-1", named(**batches)) == sealed
        assert await one.get_snapshot(snapshot.snapshot_id) == snapshot

        # Both choose the same share.
        room = snapshot.size_bytes // 2
        shares = [
            await client.get_share(snapshot.snapshot_id, max_bytes=room, balanced=True, seed=7)
            for client in (one, two)
        ]
        assert shares[0] == shares[1]
        assert len(shares[0]) == 2

        # The test kills the sending store; the device resumes at the other store.
        content, staging = content_in(tmp_path / "here")
        staging.intercept = first.kill
        digests = list(batches.values())
        with pytest.raises(Unavailable):
            await one.download_shards(snapshot.snapshot_id, digests, content)
        assert content.blobs.contains(digests[0]) or staging.offset("fetch", digests[0])
        assert not content.blobs.contains(digests[-1])
        await two.download_shards(snapshot.snapshot_id, digests, content)
        for digest in digests:
            verify_blob(content.blobs, digest)

        # The other takes the next refresh alone.
        await two.open_pool("pool-2", replace(LARGE, round_number=5))
        await two.put_batch("pool-2", "a", batches["a"], devices.blobs)

    first.start_again()
    async with client_of(first) as one, client_of(second) as two:
        # The restarted store knows everything. Sealing at both stores gives one snapshot.
        assert await one.get_snapshot(snapshot.snapshot_id) == snapshot
        late = devices.blobs.put_bytes(encode_batch(make_batch(9, 100, MODEL)))
        await one.put_batch("pool-2", "b", late, devices.blobs)
        both = named(a=batches["a"], b=late)
        twice = await asyncio.gather(*(c.seal_pool("pool-2", both) for c in (one, two)))
        assert twice[0] == twice[1]
        assert [s.snapshot_id for s in await two.list_snapshots()] == [
            twice[0][0].snapshot_id,
            snapshot.snapshot_id,
        ]

        # A device that withdraws at one store cannot put images at the other.
        await one.withdraw_device("a")
        await two.open_pool("pool-3", replace(LARGE, round_number=6))
        with pytest.raises(NotAllowed):
            await two.put_batch("pool-3", "a", batches["a"], devices.blobs)

        # The other store stops serving released snapshots and deletes its copies.
        copies = tmp_path / "second-data" / "cache" / digests[0].sha256
        assert copies.exists()
        await one.release_run(SPEC.run_id)
        await one.collect_snapshots()
        for client in (one, two):
            away, _ = content_in(tmp_path / f"away-{client is one}")
            with pytest.raises(NotFound):
                await client.download_shards(snapshot.snapshot_id, digests, away)
        await eventually(lambda: not copies.exists())


async def test_a_device_that_knows_both_does_not_notice_the_loss_of_one(
    replicas: list[Replica], tmp_path: Path
) -> None:
    devices, _ = content_in(tmp_path / "devices")
    data = encode_batch(make_batch(1, 8))
    batch = devices.blobs.put_bytes(data)

    async with client_of(*replicas) as client:
        await client.open_pool("pool-1", SPEC)
        replicas[0].kill()
        await client.put_batch("pool-1", "a", batch, devices.blobs)
        snapshot, _ = await client.seal_pool("pool-1", named(a=batch))
        replicas[0].start_again()
        async with client_of(replicas[0]) as first:
            content, _ = content_in(tmp_path / "here")
            assert await first.download_shards(snapshot.snapshot_id, [batch], content) == len(data)
            verify_blob(content.blobs, digest_of(data))
