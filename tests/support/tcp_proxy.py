"""A TCP proxy between callers and a service, which can fail on command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, Self, TypeAlias

Way: TypeAlias = Literal["up", "down"]
"""From the caller to the service, or back."""

_PIECE_BYTES = 1 << 16


class Proxy:
    """Passes bytes on; how badly can be changed at any time."""

    def __init__(self, target: str, delay_seconds: float = 0.0) -> None:
        self.address = ""  # known while it is running
        self.delay_seconds = delay_seconds  # before each piece of at most 64 KiB
        self.losing: Way | None = None  # what goes this way vanishes
        self.passed = {"up": 0, "down": 0}  # bytes
        self.heard: list[bytearray] = []  # what came up each connection
        self.stuck = asyncio.Event()  # as much has passed as may
        self._limit: tuple[Way, int] | None = None
        self._host, _, self._port = target.rpartition(":")
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def hold_after(self, way: Way, more_bytes: int) -> None:
        """Pass on so many bytes this way, and then none, until `cut`."""
        self.stuck.clear()
        self._limit = (way, self.passed[way] + more_bytes)

    def cut(self) -> None:
        """Break all connections; new ones are passed on as they should be."""
        self._limit = None
        self.losing = None
        # At once: a task that has not heard yet that it is cancelled passes on what is to be lost.
        for writer in self._writers:
            writer.transport.abort()
        for connection in self._connections:
            connection.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._pass_on(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        self._writers.add(writer)
        try:
            from_service, to_service = await asyncio.open_connection(self._host, self._port)
            writers.append(to_service)
            self._writers.add(to_service)
            heard = bytearray()
            self.heard.append(heard)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pump("up", reader, to_service, heard))
                ways.create_task(self._pump("down", from_service, writer))
        except* OSError:
            pass  # one side is gone: so will be the other
        finally:
            for each in writers:
                each.transport.abort()
                self._writers.discard(each)

    async def _pump(
        self,
        way: Way,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        heard: bytearray | None = None,
    ) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            if heard is not None:
                heard += piece
            await asyncio.sleep(self.delay_seconds)
            if self.losing == way:
                continue
            passing = piece[: self._room(way)]
            self.passed[way] += len(passing)
            writer.write(passing)
            await writer.drain()
            if len(passing) < len(piece):
                self.stuck.set()
                await asyncio.Event().wait()  # until it is cut
        raise ConnectionResetError("closed")

    def _room(self, way: Way) -> int:
        """How many bytes may still pass this way."""
        if self._limit is None or self._limit[0] != way:
            return _PIECE_BYTES
        return max(0, self._limit[1] - self.passed[way])
