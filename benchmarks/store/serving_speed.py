"""How fast does the store serve a snapshot to many devices, against plain gRPC copying?

    python -m benchmarks.store.serving_speed [--devices 100] [--contributors 50] [--quick]

A snapshot of 32 x 32 colour images (3 KB each) has one shard of 128 images from each contributor.
All devices fetch it at once, each on its own connection: GetShare, then all shards in one
stream. In turns, the baseline sends as many bytes through plain gRPC from memory
(loopback_copy.py). Neither side keeps or checks what it gets, since real devices do that on their
own processors.

The table has seconds of both and their ratio, and the store's processor time and memory above rest.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from statistics import median

import grpc

from benchmarks.shared.loopback_copy import loopback_copy
from benchmarks.shared.no_op_devices import CHANNEL_OPTIONS
from benchmarks.shared.programs import (
    MEGABYTE,
    StartedProgram,
    allow_open_files,
    forget_peak,
    print_progress,
    print_result,
    programs,
    usage,
    warn_if_busy,
)
from benchmarks.store.ingest_speed import Batches, OneBatch
from hfmds.domain.digest import digest_of
from hfmds.domain.pools import Contribution, PoolSpec, Snapshot
from hfmds.domain.recipe import ModelSpec
from hfmds.service.client.peer import Peer
from hfmds.v1 import synthesis_store_pb2 as pb
from hfmds.v1.synthesis_store_pb2_grpc import SynthesisStoreServiceStub
from hfmds.wire.clients.store_client import StoreClient
from hfmds.wire.conversions.common import digest_message

_FILES_BESIDES = 200
_MODEL = ModelSpec()


class ReceivingClient(StoreClient):
    """A client with its own connection."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self.channel = self._channel = grpc.aio.insecure_channel(
            peer.address, options=CHANNEL_OPTIONS
        )
        self._stub = SynthesisStoreServiceStub(self._channel)

    async def receive(self, snapshot_id: str, seed: int) -> int:
        """Fetch all shards, drop them, and return their size."""
        share = await self.get_share(snapshot_id, balanced=True, seed=seed)
        first, *further = (digest_message(shared.shard.digest) for shared in share)
        request = pb.DownloadShardRequest(snapshot_id=snapshot_id, digest=first, further=further)
        size_bytes = 0
        async for part in self._stub.DownloadShard(request):
            size_bytes += len(part.data)
        return size_bytes


async def seal(store: StartedProgram, contributors: int, samples: int) -> Snapshot:
    """Make and seal the snapshot."""
    client, batches = StoreClient(store.peer), Batches(samples)
    spec = PoolSpec("serving", 1, digest_of(b"weights"), _MODEL, samples, "hfmds")
    try:
        await client.open_pool("serving", spec)
        put = []
        for number in range(contributors):
            batch = OneBatch(batches.encoded(number))
            await client.put_batch("serving", f"device-{number}", batch.digest, batch)
            put.append(Contribution(f"device-{number}", batch.digest))
        snapshot, _ = await client.seal_pool("serving", put)
        return await client.get_snapshot(snapshot.snapshot_id)
    finally:
        await client.close()


async def serve(store: StartedProgram, snapshot: Snapshot, devices: int) -> float:
    """Return the seconds until all devices have the snapshot."""
    clients = [ReceivingClient(store.peer) for _ in range(devices)]
    try:
        await asyncio.gather(*(client.channel.channel_ready() for client in clients))
        started = time.monotonic()
        received = await asyncio.gather(
            *(client.receive(snapshot.snapshot_id, seed) for seed, client in enumerate(clients))
        )
        seconds = time.monotonic() - started
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    assert set(received) == {snapshot.size_bytes}
    return seconds


async def measure(devices: int, contributors: int, samples: int, passes: int) -> None:
    """Measure and print the table."""
    allow_open_files(2 * devices + _FILES_BESIDES)
    ours: list[float] = []
    copying: list[float] = []
    with programs() as started:
        store = started.start_store()
        snapshot = await seal(store, contributors, samples)
        await serve(store, snapshot, 1)  # to warm up
        rest = usage(store.pid)
        forget_peak(store.pid)
        with loopback_copy(snapshot.size_bytes) as limit:
            await limit.download(1)
            copier_before = usage(limit.pid)
            for number in range(passes):
                ours.append(await serve(store, snapshot, devices))
                copying.append(await limit.download(devices))
                print_progress(
                    f"pass {number + 1}/{passes}: {ours[-1]:.2f} s, copying {copying[-1]:.2f} s"
                )
            copier_after = usage(limit.pid)
        after = usage(store.pid)
    moved = devices * snapshot.size_bytes
    cpu_seconds = (after.cpu_seconds - rest.cpu_seconds) / passes
    copier_seconds = (copier_after.cpu_seconds - copier_before.cpu_seconds) / passes
    print_result(
        f"| {devices} devices, {snapshot.samples} images in {len(snapshot.shards)} shards, "
        f"{snapshot.size_bytes / MEGABYTE:.0f} MB each | |\n|---|---|\n"
        f"| all have the snapshot after | {median(ours):.2f} s, "
        f"{moved / median(ours) / MEGABYTE:.0f} MB/s |\n"
        f"| plain gRPC copying | {median(copying):.2f} s, "
        f"ours {median(ours) / median(copying):.2f}x |\n"
        f"| the store's processor time | {cpu_seconds:.2f} s, "
        f"the copying server's {copier_seconds:.2f} s |\n"
        f"| the store's memory, peak | {after.peak_rss_bytes / MEGABYTE:.0f} MB |\n"
        f"| of that at rest | {rest.rss_bytes / MEGABYTE:.0f} MB |"
    )


def main() -> None:
    """Parse options, warn of a busy machine, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument(
        "--contributors", type=int, default=50, help="devices whose batches are served"
    )
    parser.add_argument("--samples", type=int, default=128, help="images of each batch")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="run seconds, only to see that it works"
    )
    options = parser.parse_args()
    if options.quick:
        options.devices, options.contributors, options.passes = 10, 10, 1
    warn_if_busy()
    asyncio.run(measure(options.devices, options.contributors, options.samples, options.passes))


if __name__ == "__main__":
    main()
