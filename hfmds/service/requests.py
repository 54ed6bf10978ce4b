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
from hfmds.service.limits import Limits


class Requests:
    """An iterator over them. `slow` raises what a caller is told that takes too long."""

    def __init__(
        self,
        context: grpc.aio.ServicerContext,
        decode: Callable[[bytes], Any],
        limits: Limits,
        *,
        look: Callable[[Any], None],
        slow: Callable[[], None],
    ) -> None:
        self._context = context
        self._decode = decode
        self._message_seconds = limits.message_seconds
        self._ends_at = asyncio.get_running_loop().time() + limits.requests_seconds
        self._look = look
        self._slow = slow

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> Any:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(min(loop.time() + self._message_seconds, self._ends_at)):
                data = await self._context.read()
        except TimeoutError:
            self._slow()
            raise
        if data is grpc.aio.EOF:
            raise StopAsyncIteration
        try:
            request = self._decode(data)
        except DecodeError:
            raise InvalidInput("the request is not a message of this method's type") from None
        self._look(request)
        return request

    async def only(self) -> Any:
        """The one request of a call that has one."""
        async for request in self:
            return request
        raise InvalidInput("the call ended before its request came")
