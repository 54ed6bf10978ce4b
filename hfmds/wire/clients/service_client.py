"""What the clients of all services share: one channel, and calls with a deadline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from hfmds.service.client.channel import call, open_channel, translating
from hfmds.service.client.peer import Peer
from hfmds.service.monitoring.tracing import call_metadata

CALL_SECONDS = 30.0
TRANSFER_SECONDS = 600.0


class ServiceClient:
    """A client of one gRPC service."""

    def __init__(self, peer: Peer, new_stub: Callable[[grpc.aio.Channel], Any]) -> None:
        """Open a channel to the peer; `new_stub` is the generated stub class."""
        self._peer = peer
        self._new_stub = new_stub
        self._use(open_channel(peer))

    async def close(self) -> None:
        """End all calls."""
        await self._channel.close()

    async def reopen(self) -> None:
        """Make further calls with the certificate that is on disk now; open calls go on."""
        old_channel = self._channel
        self._use(open_channel(self._peer))
        await old_channel.close(TRANSFER_SECONDS)

    def _use(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub = self._new_stub(channel)

    async def _call(
        self, method: Any, request: object, *, timeout_seconds: float = CALL_SECONDS
    ) -> Any:
        """Make a call that has one answer."""
        return await call(self._peer, method, request, timeout_seconds=timeout_seconds)

    async def _stream(
        self, method: Any, request: object, *, timeout_seconds: float | None = None
    ) -> AsyncIterator[Any]:
        """Make a call that has a stream of answers."""
        with translating(self._peer):
            metadata = call_metadata()
            async for answer in method(request, timeout=timeout_seconds, metadata=metadata):
                yield answer
