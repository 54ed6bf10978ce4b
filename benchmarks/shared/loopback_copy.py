"""The lower bound of a round: the same bytes through plain gRPC.

Each device downloads the model and uploads as many bytes, in messages of the same size, on a
connection of its own, all devices at once. The server is a process of its own that serves raw bytes
without protobuf. With `durable` it also hashes uploads and syncs them to disk, as a server must
before it accepts. `put_all` keeps the content.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import grpc

from benchmarks.shared.no_op_devices import CHANNEL_OPTIONS
from hfmds.domain.digest import digest_of
from hfmds.storage.blobs import CHUNK_BYTES

_SERVICE = "benchmark.Copy"


class LoopbackCopy:
    """The copying server, as its clients use it."""

    def __init__(self, pid: int, address: str, size_bytes: int) -> None:
        self.pid = pid
        self._address = address
        self._size_bytes = size_bytes

    async def round(self, devices: int, *, durable: bool) -> float:
        """Return the seconds in which all devices download and upload."""
        return await self._timed(devices, lambda channel: self._device(channel, durable))

    async def download(self, devices: int) -> float:
        """Return the seconds in which all devices download and drop the bytes."""
        return await self._timed(devices, self._receive)

    async def put_all(self, contents: Sequence[Sequence[bytes]], at_once: int) -> float:
        """Return the seconds until all contents are hashed, written and synced.

        By one client, so many at a time. As the store does with large batches, the server has the
        kernel use the memory of each for the next.
        """
        remaining = iter(contents)

        async def sent(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        async def one_after_the_other(channel: grpc.aio.Channel) -> None:
            for chunks in remaining:
                await channel.stream_unary(f"/{_SERVICE}/Keep")(sent(chunks))

        async with grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS) as channel:
            await channel.channel_ready()
            started = time.monotonic()
            await asyncio.gather(*(one_after_the_other(channel) for _ in range(at_once)))
            return time.monotonic() - started

    async def _timed(
        self, devices: int, work: Callable[[grpc.aio.Channel], Awaitable[None]]
    ) -> float:
        options = CHANNEL_OPTIONS
        channels = [
            grpc.aio.insecure_channel(self._address, options=options) for _ in range(devices)
        ]
        try:
            await asyncio.gather(*(channel.channel_ready() for channel in channels))
            started = time.monotonic()
            await asyncio.gather(*map(work, channels))
            return time.monotonic() - started
        finally:
            await asyncio.gather(*(channel.close() for channel in channels))

    async def _receive(self, channel: grpc.aio.Channel) -> None:
        size_bytes = 0
        async for chunk in channel.unary_stream(f"/{_SERVICE}/Download")(b""):
            size_bytes += len(chunk)
        assert size_bytes == self._size_bytes

    async def _device(self, channel: grpc.aio.Channel, durable: bool) -> None:
        download = channel.unary_stream(f"/{_SERVICE}/Download")
        chunks = [chunk async for chunk in download(b"")]
        assert sum(map(len, chunks)) == self._size_bytes

        async def again() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        upload = channel.stream_unary(f"/{_SERVICE}/{'Durably' if durable else 'Upload'}")
        await upload(again())


@contextmanager
def loopback_copy(size_bytes: int, place: Path | None = None) -> Iterator[LoopbackCopy]:
    """Start a server of `size_bytes` in its own process. It keeps files in `place`."""
    context = multiprocessing.get_context("spawn")
    line, far_end = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="hfmds-benchmark-", dir=place) as folder:
        process = context.Process(
            target=_serve, args=(far_end, size_bytes, Path(folder)), daemon=True
        )
        process.start()
        try:
            assert process.pid is not None
            yield LoopbackCopy(process.pid, line.recv(), size_bytes)
        finally:
            process.terminate()
            process.join()


def _serve(line: Connection, size_bytes: int, folder: Path) -> None:
    asyncio.run(_served(line, os.urandom(size_bytes), folder))


async def _served(line: Connection, data: bytes, folder: Path) -> None:
    async def download(request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        for at in range(0, len(data), CHUNK_BYTES):
            yield data[at : at + CHUNK_BYTES]

    async def upload(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        received = [chunk async for chunk in requests]
        assert sum(map(len, received)) == len(data)
        return b""

    async def durably(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        received = [chunk async for chunk in requests]
        await asyncio.to_thread(_keep_briefly, received, folder)
        return b""

    async def keep(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        received = [chunk async for chunk in requests]
        await asyncio.to_thread(_keep_for_good, received, folder)
        return b""

    handlers = {
        "Download": grpc.unary_stream_rpc_method_handler(download),
        "Upload": grpc.stream_unary_rpc_method_handler(upload),
        "Durably": grpc.stream_unary_rpc_method_handler(durably),
        "Keep": grpc.stream_unary_rpc_method_handler(keep),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    line.send(f"127.0.0.1:{port}")
    await server.wait_for_termination()


def _keep_briefly(chunks: list[bytes], folder: Path) -> None:
    """Do as `_keep`, then delete the file, as a round does with its updates."""
    Path(_keep(chunks, folder)).unlink()


def _keep_for_good(chunks: list[bytes], folder: Path) -> None:
    """Do as `_keep`, then free its page cache, since nobody reads it soon."""
    _forget_cached(Path(_keep(chunks, folder)))


def _keep(chunks: list[bytes], folder: Path) -> str:
    """Write and sync one file; return its name."""
    data = b"".join(chunks)
    digest_of(data)
    descriptor, name = tempfile.mkstemp(dir=folder)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return name


def _forget_cached(path: Path) -> None:
    """Ask the kernel to free the memory that caches a synced file's bytes.

    This does nothing on systems that cannot do so, or if the file is gone.
    """
    with suppress(AttributeError, FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
