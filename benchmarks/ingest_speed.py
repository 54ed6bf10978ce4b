"""How fast does the store take synthetic images, beside plain writes to the same disk?

    .venv/bin/python benchmarks/ingest_speed.py [--devices 1000] [--samples 1000] [--quick]

So many devices, a few at a time, each put one batch of 32 x 32 colour images (3 KB each) into one
pool of a real store on loopback; a batch counts when the store has answered, so when it is
checked and durable. Beside it, in the same run:

- one process that writes the same bytes one after the other into one file on the same disk and
  syncs it at the end. Three times after a pause, and each time once more at once: a virtual machine
  may give memory that is free for some seconds back to its host, and then it takes several times
  longer to write into it. The files of the store stay, so that it gets little memory that was just
  freed; where memory stays with the machine, both are the same;
- a bare gRPC server (loopback_copy.py), which gets the same bytes in the same chunks, hashes them,
  and writes and syncs a file for each batch, and does nothing else.

Printed as Markdown: samples per second of all, the store's rate in its first and its last tenth,
and its memory and processor time. All images are different, as those of devices are. Making batches
is not counted: devices have made them before they call, and so have the clients here, which takes
as much memory as all images have bytes (3.1 GB).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from loopback_copy import loopback_copy
from programs import MEGABYTE, Program, forget_peak, programs, show, tell, usage, warn_if_busy

from hfmds.algorithm.recipes import ModelSpec
from hfmds.algorithm.types import LabelledImages, SyntheticBatch
from hfmds.digest import Digest, digest_of
from hfmds.service.allocator import reuse_freed_memory
from hfmds.storage.blobs import CHUNK_BYTES
from hfmds.wire.store_client import StoreClient
from hfmds.wire.tensors import encode_batch
from hfmds.wire.types import PoolSpec

_MODEL = ModelSpec()
_IMAGE_BYTES = math.prod(_MODEL.image_shape)
_POOL = "ingest"
_WRITES = 3  # after a pause, and as many at once
_PAUSE_SECONDS = 10.0  # in which memory that is free goes to the host
_PARTS = 10  # of the whole, whose rates are compared


class OneBatch:
    """A device's only content, in memory."""

    def __init__(self, data: bytearray) -> None:
        self.digest = digest_of(data)
        self.chunks = [
            bytes(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)
        ]

    def read(
        self, digest: Digest, offset: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        """Its bytes, all of them: nothing breaks here."""
        assert (offset, chunk_bytes) == (0, CHUNK_BYTES)
        return iter(self.chunks)


class Batches:
    """Batches of which no two have an image in common, made quickly."""

    def __init__(self, samples: int) -> None:
        source = np.random.default_rng(0)
        pixels = source.integers(0, 256, (samples, *_MODEL.image_shape), np.uint8)
        labels = source.integers(0, _MODEL.classes, samples)
        measured = [field.name for field in dataclasses.fields(SyntheticBatch)[1:]]
        values = {name: np.full(samples, 0.5, np.float32) for name in measured}
        self._first = encode_batch(SyntheticBatch(LabelledImages(pixels, labels), **values))
        self._pixels_at = self._first.index(pixels.tobytes())
        self._samples = samples

    def encoded(self, number: int) -> bytearray:
        """The batch of the device with this number."""
        data = bytearray(self._first)
        pixels = np.frombuffer(data, np.uint8)[self._pixels_at :][: self._samples * _IMAGE_BYTES]
        # The number in its first four bytes is what makes each image of a batch its own.
        pixels.reshape(self._samples, -1)[:, :4] = np.frombuffer(number.to_bytes(4), np.uint8)
        return data


@dataclass(frozen=True, slots=True)
class Ingest:
    """What the store did."""

    seconds: float
    part_seconds: tuple[float, ...]
    cpu_seconds: float
    peak_bytes: int


async def put_all(store: Program, made: Sequence[OneBatch], at_once: int) -> Ingest:
    """Let every device put its batch."""
    client = StoreClient(store.peer)
    devices = len(made)
    numbers = iter(range(devices))
    done_at: list[float] = []

    async def one_after_the_other() -> None:
        for number in numbers:
            await client.put_batch(_POOL, f"device-{number}", made[number].digest, made[number])
            done_at.append(time.monotonic())
            if len(done_at) % max(1, devices // 20) == 0:
                tell(f"{len(done_at)} of {devices} devices")

    forget_peak(store.pid)
    before = usage(store.pid)
    started = time.monotonic()
    try:
        await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    finally:
        await client.close()
    after = usage(store.pid)
    ends = [started, *(done_at[devices * part // _PARTS - 1] for part in range(1, _PARTS + 1))]
    return Ingest(
        ends[-1] - started,
        tuple(np.diff(ends)),
        after.cpu_seconds - before.cpu_seconds,
        after.peak_rss_bytes,
    )


def write_all(folder: Path, made: Sequence[OneBatch]) -> float:
    """Seconds to write all batches into one file and to sync it."""
    descriptor, name = tempfile.mkstemp(dir=folder)
    try:
        started = time.monotonic()
        for batch in made:
            os.writev(descriptor, batch.chunks)
        os.fsync(descriptor)
        return time.monotonic() - started
    finally:
        os.close(descriptor)
        Path(name).unlink()


async def open_pool(store: Program, samples: int) -> None:
    """Open the pool that takes everything."""
    client = StoreClient(store.peer)
    try:
        spec = PoolSpec(
            run_id="ingest",
            round_number=1,
            weights=digest_of(b"weights"),
            model=_MODEL,
            max_samples_per_device=samples,
            method="hfmds",
        )
        await client.open_pool(_POOL, spec)
    finally:
        await client.close()


def measure(devices: int, samples: int, at_once: int, pause_seconds: float) -> None:
    """Measure, and print the table."""
    batches = Batches(samples)
    made = [OneBatch(batches.encoded(number)) for number in range(devices)]
    total = devices * samples
    total_bytes = sum(batch.digest.size_bytes for batch in made)
    after_pause, at_once_again = list[float](), list[float]()
    with programs() as ours:
        store = ours.start_store()
        asyncio.run(open_pool(store, samples))
        for _ in range(_WRITES):
            time.sleep(pause_seconds)
            after_pause.append(write_all(ours.folder, made))
            at_once_again.append(write_all(ours.folder, made))
        tell(f"written in {median(after_pause):.1f} s, {median(at_once_again):.1f} s at once")
        time.sleep(pause_seconds)
        ingest = asyncio.run(put_all(store, made, at_once))
    with loopback_copy(0) as limit:
        time.sleep(pause_seconds)
        before = usage(limit.pid).cpu_seconds
        bare = asyncio.run(limit.put_all([batch.chunks for batch in made], at_once))
        bare_cpu = usage(limit.pid).cpu_seconds - before

    def rate(name: str, seconds: float, note: str) -> str:
        share = f"{seconds / ingest.seconds:.2f}" if name != "store" else ""
        return (
            f"| {name} | {total / seconds:,.0f} samples/s, "
            f"{total_bytes / seconds / MEGABYTE:.0f} MB/s{note} | {share} |"
        )

    def all_of(seconds: Sequence[float]) -> str:
        return f" ({', '.join(f'{one:.1f}' for one in seconds)} s)"

    first, last = ingest.part_seconds[0], ingest.part_seconds[-1]
    title = f"{total:,} samples, {total_bytes / 1e9:.2f} GB, {devices} devices, {at_once} at once"
    computing = "s of processor time"
    lines = (
        f"| {title} | | the store's share of it |",
        "|---|---|---|",
        rate("store", ingest.seconds, f", {ingest.cpu_seconds:.1f} {computing}"),
        rate("bare gRPC server: hash, write, sync", bare, f", {bare_cpu:.1f} {computing}"),
        rate("plain writes, after a pause", median(after_pause), all_of(after_pause)),
        rate("plain writes, at once after others", median(at_once_again), all_of(at_once_again)),
        f"| store, rate of its last tenth, of its first | {first / last:.2f} | |",
        f"| store, memory, peak | {ingest.peak_bytes / MEGABYTE:.0f} MB | |",
    )
    show("\n".join(lines))


def main() -> None:
    """Parse, warn and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=1000, help="of each device")
    parser.add_argument("--at-once", type=int, default=4, help="devices that put at a time")
    parser.add_argument("--quick", action="store_true", help="seconds, to see that it works")
    parser.add_argument("--pause", type=float, default=_PAUSE_SECONDS, help="seconds, see above")
    options = parser.parse_args()
    if options.quick:
        options.devices, options.samples, options.pause = 20, 100, 0.0
    warn_if_busy()
    reuse_freed_memory()  # as the store does: the devices' work should not be most of it
    measure(options.devices, options.samples, options.at_once, options.pause)


if __name__ == "__main__":
    main()
