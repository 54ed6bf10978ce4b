"""How fast does the store take synthetic images, against sequential writes to the same disk?

    python -m benchmarks.store.ingest_speed [--devices 1000] [--samples 1000] [--quick]

Devices, a few at a time, each put one batch of 32 x 32 colour images (3 KB each) into one pool of a
real store on loopback. A batch counts when it is checked, durable and acknowledged. In turns, on
the same disk, the baselines are

- one process that writes the same bytes into one file and syncs it at the end;
- a bare gRPC server (loopback_copy.py) that hashes, writes and syncs a file for each batch.

There are two conditions, because a virtual machine may return free memory to its host, and writing
into returned memory takes several times longer:

- files stay: the script deletes nothing before the end, so each way needs new memory, as in
  operation;
- memory at hand: each way starts right after a file of as many bytes was written and deleted. The
  bare server is left out, since it reuses the memory of its last batch anyway.

Each way runs three times on an empty store, and medians count. The table has samples per second,
the rate in the first and the last tenth, memory and processor time. All images differ. Making
batches does not count; the clients hold all of them in memory (3.1 GB). The files take up to ten
times as much disk and up to four times as much page cache.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.shared.loopback_copy import LoopbackCopy, loopback_copy
from benchmarks.shared.programs import (
    MEGABYTE,
    Programs,
    StartedProgram,
    forget_peak,
    print_progress,
    print_result,
    programs,
    usage,
    warn_if_busy,
)
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.learning import LabelledImages, SyntheticBatch
from hfmds.domain.pools import PoolSpec
from hfmds.domain.recipe import ModelSpec
from hfmds.storage.blobs import CHUNK_BYTES
from hfmds.wire.clients.store_client import StoreClient
from hfmds.wire.tensors import encode_batch

_MODEL = ModelSpec()
_IMAGE_BYTES = math.prod(_MODEL.image_shape)
_POOL = "ingest"
_PASSES = 3
_PAUSE_SECONDS = 5.0  # in which memory that is free goes to the host
_PARTS = 10  # of the whole, whose rates are compared


class OneBatch:
    """The only content of a device, in memory."""

    def __init__(self, data: bytearray) -> None:
        self.digest = digest_of(data)
        self.chunks = [
            bytes(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)
        ]

    def read(
        self, digest: Digest, offset: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        """Return all bytes; nothing resumes here."""
        assert (offset, chunk_bytes) == (0, CHUNK_BYTES)
        return iter(self.chunks)


class Batches:
    """Batches that share no image, made quickly."""

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
        """Return the batch of a device."""
        data = bytearray(self._first)
        pixels = np.frombuffer(data, np.uint8)[self._pixels_at :][: self._samples * _IMAGE_BYTES]
        # The number in its first four bytes is what makes each image of a batch its own.
        pixels.reshape(self._samples, -1)[:, :4] = np.frombuffer(number.to_bytes(4), np.uint8)
        return data


@dataclass(frozen=True, slots=True)
class Ingest:
    """The store's results."""

    seconds: float
    part_seconds: tuple[float, ...]
    cpu_seconds: float
    peak_bytes: int


async def put_all(
    store: StartedProgram, batches_in_memory: Sequence[OneBatch], at_once: int
) -> Ingest:
    """Have every device put its batch."""
    client = StoreClient(store.peer)
    devices = len(batches_in_memory)
    numbers = iter(range(devices))
    done_at: list[float] = []

    async def one_after_the_other() -> None:
        for number in numbers:
            await client.put_batch(
                _POOL,
                f"device-{number}",
                batches_in_memory[number].digest,
                batches_in_memory[number],
            )
            done_at.append(time.monotonic())

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


def write_all(path: Path, batches_in_memory: Sequence[OneBatch]) -> float:
    """Write all batches into one file and sync it; return the seconds."""
    with path.open("xb", buffering=0) as file:
        started = time.monotonic()
        for batch in batches_in_memory:
            os.writev(file.fileno(), batch.chunks)
        os.fsync(file.fileno())
        return time.monotonic() - started


async def open_pool(store: StartedProgram, samples: int) -> None:
    """Open a pool that takes everything."""
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


@dataclass(slots=True)
class Condition:
    """The results in one condition, pass by pass."""

    plain: list[float] = field(default_factory=list)  # seconds
    bare: list[float] = field(default_factory=list)
    bare_cpu: list[float] = field(default_factory=list)
    store: list[Ingest] = field(default_factory=list)


class Bench:
    """Measures one way after the other, and keeps files until told to delete them."""

    def __init__(
        self,
        ours: Programs,
        limit: LoopbackCopy,
        batches_in_memory: Sequence[OneBatch],
        samples: int,
        at_once: int,
    ) -> None:
        self._ours = ours
        self._limit = limit
        self._batches = batches_in_memory
        self._samples = samples
        self._at_once = at_once
        self._stores = itertools.count()
        self._store = self._new_store()

    def plain(self, results: Condition, name: str) -> Path:
        """Write one file and return its path."""
        path = self._ours.folder / name
        results.plain.append(write_all(path, self._batches))
        print_progress(f"written in {results.plain[-1]:.1f} s")
        return path

    def bare(self, results: Condition) -> None:
        """Put all batches into the bare server."""
        before = usage(self._limit.pid).cpu_seconds
        contents = [batch.chunks for batch in self._batches]
        results.bare.append(asyncio.run(self._limit.put_all(contents, self._at_once)))
        results.bare_cpu.append(usage(self._limit.pid).cpu_seconds - before)
        print_progress(f"put into the bare server in {results.bare[-1]:.1f} s")

    def store(self, results: Condition) -> None:
        """Put all batches into a started, empty store."""
        results.store.append(asyncio.run(put_all(self._store, self._batches, self._at_once)))
        print_progress(f"put into the store in {results.store[-1].seconds:.1f} s")
        self._store.stop()
        self._store = self._new_store()

    def _new_store(self) -> StartedProgram:
        store = self._ours.start_store(f"store-{next(self._stores)}")
        asyncio.run(open_pool(store, self._samples))
        return store


def measure(devices: int, samples: int, at_once: int, passes: int, pause_seconds: float) -> None:
    """Measure and print the table."""
    batches = Batches(samples)
    batches_in_memory = [OneBatch(batches.encoded(number)) for number in range(devices)]
    stay, at_hand = Condition(), Condition()
    with programs() as ours, loopback_copy(0, ours.folder) as limit:
        bench = Bench(ours, limit, batches_in_memory, samples, at_once)
        written: list[Path] = []
        for number in range(passes):
            turns = [
                lambda name=f"plain-{number}": written.append(bench.plain(stay, name)),
                lambda: bench.store(stay),
                lambda: bench.bare(stay),
            ]
            for turn in (*turns[number % 3 :], *turns[: number % 3]):  # each is first once
                time.sleep(pause_seconds)
                turn()
        for path in written:
            path.unlink()
        for number in range(passes):
            # Just written: of an older file the kernel may have let go a part by now.
            bench.plain(Condition(), f"before-{number}").unlink()
            bench.plain(at_hand, f"again-{number}").unlink()
            bench.store(at_hand)
    total_bytes = sum(batch.digest.size_bytes for batch in batches_in_memory)
    title = (
        f"{devices * samples:,} samples, {total_bytes / 1e9:.2f} GB, {devices} devices, "
        f"{at_once} at once, medians of {passes}"
    )
    print_result(table(title, devices * samples, {"files stay": stay, "memory at hand": at_hand}))


def table(title: str, samples: int, results: Mapping[str, Condition]) -> str:
    """Format the results by condition."""
    lines = [
        f"| {title} | samples/s | seconds, each | processor, s | the store's share |",
        "|---|---|---|---|---|",
    ]
    for name, condition in results.items():
        ours = [one.seconds for one in condition.store]
        cpu = [one.cpu_seconds for one in condition.store]
        measured = [("store", ours, f"{median(cpu):.1f}"), ("plain writes", condition.plain, "")]
        if condition.bare:
            bare_cpu = f"{median(condition.bare_cpu):.1f}"
            measured.append(("bare gRPC server: hash, write, sync", condition.bare, bare_cpu))
        for what, seconds, spent in measured:
            rate = f"{samples / median(seconds):,.0f}"
            share = "" if seconds is ours else f"{median(seconds) / median(ours):.2f}"
            lines.append(f"| {name}: {what} | {rate} | {_each(seconds)} | {spent} | {share} |")
    taken = [one for condition in results.values() for one in condition.store]
    kept_up = [one.part_seconds[0] / one.part_seconds[-1] for one in taken]
    peak = max(one.peak_bytes for one in taken) / MEGABYTE
    last = f"{median(kept_up):.2f} | {_each(kept_up, 2)}"
    lines += [
        f"| store, rate of its last tenth, of its first | {last} | | |",
        f"| store, memory, peak | {peak:.0f} MB | | | |",
    ]
    return "\n".join(lines)


def _each(numbers: Sequence[float], digits: int = 1) -> str:
    return ", ".join(f"{number:.{digits}f}" for number in numbers)


def main() -> None:
    """Parse options, warn of a busy machine, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=1000, help="images of each device")
    parser.add_argument("--at-once", type=int, default=4, help="devices that upload at a time")
    parser.add_argument(
        "--quick", action="store_true", help="run seconds, only to see that it works"
    )
    parser.add_argument(
        "--passes", type=int, default=_PASSES, help="passes of each way in each condition"
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=_PAUSE_SECONDS,
        help="seconds before each pass where files stay",
    )
    options = parser.parse_args()
    if options.quick:
        options.devices, options.samples, options.pause = 20, 100, 0.0
        options.passes = 2
    warn_if_busy()
    measure(options.devices, options.samples, options.at_once, options.passes, options.pause)


if __name__ == "__main__":
    main()
