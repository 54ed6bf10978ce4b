"""The requests of one call as they come: each whole within a time, decoded and looked at.

A caller that sends a byte now and then would else hold its place for ever, and bytes that are no
message would be an internal error of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from hfmds.errors import InvalidInput
from hfmds.service.limits.limits import Limits
from hfmds.service.server.read_deadline import Patience


class Requests:
    """An iterator over them. `slow` raises what a caller is told that takes too long."""

    __slots__ = (
        "_context",
        "_decode",
        "_ends_at",
        "_look",
        "_message_seconds",
        "_patience",
        "_slow",
    )

    def __init__(
        self,
        context: grpc.aio.ServicerContext,
        decode: Callable[[bytes], Any],
        limits: Limits,
        patience: Patience,
        *,
        look: Callable[[Any], None],
        slow: Callable[[], None],
    ) -> None:
        self._context = context
        self._decode = decode
        self._message_seconds = limits.message_seconds
        self._patience = patience
        self._ends_at = patience.time() + limits.requests_seconds
        self._look = look
        self._slow = slow

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> Any:
        data = await self._read()
        if data is grpc.aio.EOF:
            raise StopAsyncIteration
        return self._decoded(data)

    async def only(self) -> Any:
        """The one request of a call that has one."""
        data = await self._read()
        if data is grpc.aio.EOF:
            raise InvalidInput("the call ended before its request came")
        return self._decoded(data)

    async def _read(self) -> Any:
        patience = self._patience
        patience.begin(min(patience.time() + self._message_seconds, self._ends_at))
        try:
            return await self._context.read()
        except asyncio.CancelledError:
            if patience.was_lost():
                self._slow()
            raise
        finally:
            patience.end()

    def _decoded(self, data: bytes) -> Any:
        try:
            request = self._decode(data)
        except DecodeError:
            raise InvalidInput("the request is not a message of this method's type") from None
        self._look(request)
        return request
