"""gRPC's own services, health and reflection, within limits of their own.

Not within those of other calls: a server that is at its limit still answers its supervisor. Health
checks are short and have their own count, so that nobody who keeps streams open shuts them out.
Whoever is revoked begins nothing here; a stream that is open goes on until its connection ends.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc

from hfmds.errors import HfmdsError, InvalidInput
from hfmds.service.limits.limits import Limits
from hfmds.service.limits.throttle import Throttle
from hfmds.service.security.access import require_known
from hfmds.service.security.caller import Recognise
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.status import metadata_of, status_of

# Messages of a stream are counted as calls, too. Tools that list a contract ask some dozen times.
_LIMITS = Limits(calls=50, calls_per_second=200.0, address_calls_per_second=20.0)
_MAX_MESSAGE_BYTES = 1024  # names of services and files; those that are watched are kept


class Supervision:
    """Limits the handlers of gRPC's own services."""

    def __init__(
        self,
        process: str,
        refused: Callable[[str], None],
        recognise: Recognise | None,
        gate: Gate,
    ) -> None:
        self._recognise = recognise
        self._gate = gate
        self._checks = Throttle(process, _LIMITS, refused)
        self._streams = Throttle(process, _LIMITS, refused)

    def limited(self, handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
        """The same handler for not too many calls."""
        coders = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._check(handler.unary_unary), *coders)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._watch(handler.unary_stream), *coders)
        return grpc.stream_stream_rpc_method_handler(self._talk(handler.stream_stream), *coders)

    @asynccontextmanager
    async def _call(
        self, throttle: Throttle, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[None]:
        with throttle.call(context.peer(), time.monotonic()):
            if self._recognise is not None:
                caller = await self._recognise(context)
                require_known(caller.identity)
                if caller.certificate is not None:
                    self._gate.exclusions.require_alive(caller.certificate)
            yield

    def _check(self, inner: Any) -> Any:
        async def check(request: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                async with self._call(self._checks, context):
                    return await inner(_small(request), context)
            except HfmdsError as error:
                await _refuse(context, error)

        return check

    def _watch(self, inner: Any) -> Any:
        async def watch(request: Any, context: grpc.aio.ServicerContext) -> None:
            try:
                async with self._call(self._streams, context):
                    await inner(_small(request), context)  # writes by itself
            except HfmdsError as error:
                await _refuse(context, error)

        return watch

    def _talk(self, inner: Any) -> Any:
        async def each(requests: AsyncIterator[Any], peer: str) -> AsyncIterator[Any]:
            async for request in requests:
                with self._checks.call(peer, time.monotonic()):
                    pass  # counted, and over: who does not take its answers holds no place
                yield _small(request)

        async def talk(
            requests: AsyncIterator[Any], context: grpc.aio.ServicerContext
        ) -> AsyncIterator[Any]:
            try:
                async with self._call(self._streams, context):
                    asked = each(requests, context.peer())
                    async with aclosing(inner(asked, context)) as responses:
                        async for response in responses:
                            yield response
            except HfmdsError as error:
                await _refuse(context, error)

        return talk


def _small(request: Any) -> Any:
    if request.ByteSize() > _MAX_MESSAGE_BYTES:
        raise InvalidInput(f"a request of more than {_MAX_MESSAGE_BYTES} bytes")
    return request


async def _refuse(context: grpc.aio.ServicerContext, error: HfmdsError) -> None:
    await context.abort(status_of(error), error.public, metadata_of(error))
