"""What happens around every handler of a server: errors become statuses, calls are counted.

Handlers raise `hfmds.errors` and nothing more. Anything else is our own fault: the caller gets an
error id, the log gets the traceback under that id. gRPC's own services (health, reflection) are
left alone, so that a server at its limit still answers its supervisor.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc

from hfmds.errors import HfmdsError, Unavailable
from hfmds.service.access import Access, require_access, require_own
from hfmds.service.identity import Identity, identity_of
from hfmds.service.pace import Pace
from hfmds.service.rpc_metrics import MethodMetrics, RpcMetrics
from hfmds.service.status import metadata_of, status_of

log = logging.getLogger(__name__)

# A status message travels as metadata, which the other side caps at 8 KiB after escaping.
_MAX_MESSAGE_CHARACTERS = 1000

# When callers that were refused at the limit come back: to refuse one costs well below 1 ms.
_BACK_PER_SECOND = 200.0
_BACK_AFTER_SECONDS = 1.0


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Translates errors, measures calls, caps the number in flight, and keeps out who may not call.

    `access` has by service who may call its methods; None: callers have no certificates.
    """

    def __init__(
        self,
        metrics: RpcMetrics,
        max_concurrent_rpcs: int,
        access: Mapping[str, Access] | None = None,
    ) -> None:
        self._metrics = metrics
        self._max_concurrent_rpcs = max_concurrent_rpcs
        self._access = access
        self._in_flight = 0
        self._pace = Pace(_BACK_PER_SECOND, _BACK_AFTER_SECONDS)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        path = handler_call_details.method  # "/hfmds.v1.CoordinatorService/CheckIn"
        # No handler: gRPC answers UNIMPLEMENTED, and a made-up name never becomes a metric label.
        if handler is None or path.startswith("/grpc."):
            return handler
        _, service, method = path.split("/")
        return self._wrapped(handler, service, method)

    def _wrapped(
        self, handler: grpc.RpcMethodHandler, service: str, method: str
    ) -> grpc.RpcMethodHandler:
        inner = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )

        async def unary(request: Any, context: grpc.aio.ServicerContext) -> Any:
            async with self._call(service, method, context) as identity:
                return await inner(_of(identity, request, handler), context)

        async def stream(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            # The handler is closed at once when the caller goes away, not when it is collected.
            async with (
                self._call(service, method, context) as identity,
                aclosing(inner(_of(identity, request, handler), context)) as responses,
            ):
                async for response in responses:
                    yield response

        rebuild = _HANDLER[bool(handler.request_streaming), bool(handler.response_streaming)]
        series = self._metrics.of(service, method)
        return rebuild(
            stream if handler.response_streaming else unary,
            request_deserializer=_deserialiser(handler, series),
            response_serializer=_serialiser(handler, series),
        )

    @asynccontextmanager
    async def _call(
        self, service: str, method: str, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Identity | None]:
        """One call: counted, timed, and ended with a status whatever happens inside.

        Inside it is known who calls, where callers have certificates.
        """
        started = time.monotonic()
        series = self._metrics.of(service, method)
        series.in_flight.inc()
        self._in_flight += 1
        code, refusal = grpc.StatusCode.OK, None
        metadata: tuple[tuple[str, str], ...] = ()
        try:
            self._refuse_when_full(context.peer(), started)
            yield self._admit(service, method, context)
        except (asyncio.CancelledError, GeneratorExit):
            # The caller hung up, its deadline passed, or we stop; GeneratorExit if it happened
            # between two responses of a stream, while gRPC was sending.
            code = grpc.StatusCode.CANCELLED
            raise
        except grpc.aio.AbortError:  # the handler has answered by itself
            code = context.code()
            raise
        except HfmdsError as error:
            code, refusal, metadata = status_of(error), str(error), metadata_of(error)
            level = logging.ERROR if code is grpc.StatusCode.INTERNAL else logging.INFO
            fields = {"rpc": f"{service}/{method}", "code": code.name, "reason": refusal}
            log.log(level, "call refused", extra=fields)
        except Exception:
            error_id = uuid.uuid4().hex[:12]
            code = grpc.StatusCode.INTERNAL
            refusal = f"internal error {error_id}; the log of {self._metrics.process} has it"
            fields = {"rpc": f"{service}/{method}", "error_id": error_id}
            log.exception("call failed", extra=fields)
        finally:
            self._in_flight -= 1
            series.in_flight.dec()
            series.answered(code.name).inc()
            series.duration.observe(time.monotonic() - started)
        if refusal is not None:
            # Last: a caller that hears "no" finds its place free and the call counted.
            await context.abort(code, refusal[:_MAX_MESSAGE_CHARACTERS], metadata)

    def _admit(
        self, service: str, method: str, context: grpc.aio.ServicerContext
    ) -> Identity | None:
        if self._access is None:
            return None
        return require_access(self._access[service], method, identity_of(context))

    def _refuse_when_full(self, caller: str, now: float) -> None:
        # Not gRPC's own cap: that answers RESOURCE_EXHAUSTED, which says "do not try again".
        if self._in_flight > self._max_concurrent_rpcs:
            seconds = self._pace.retry_seconds(caller, now)
            raise Unavailable(
                f"{self._metrics.process} has {self._max_concurrent_rpcs} calls in flight, "
                f"its limit; try again in {seconds:.1f} s",
                retry_after_seconds=seconds,
            )


def _of(identity: Identity | None, request: Any, handler: grpc.RpcMethodHandler) -> Any:
    """The request, or stream of them; refused where a device speaks for another."""
    if identity is None:
        return request
    if handler.request_streaming:
        return _each_of(identity, request)
    require_own(identity, request)
    return request


async def _each_of(identity: Identity, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        require_own(identity, request)
        yield request


def _deserialiser(handler: grpc.RpcMethodHandler, series: MethodMetrics) -> Callable[[bytes], Any]:
    """As the handler's, counting; one that has none takes bytes."""
    deserialise: Callable[[bytes], Any] = handler.request_deserializer or bytes

    def counting(data: bytes) -> Any:
        series.received_bytes.inc(len(data))
        return deserialise(data)

    return counting


def _serialiser(handler: grpc.RpcMethodHandler, series: MethodMetrics) -> Callable[[Any], bytes]:
    """As the handler's, counting; one that answers in bytes has serialised by itself."""
    serialise: Callable[[Any], bytes] = handler.response_serializer

    def counting(response: Any) -> bytes:
        data = response if type(response) is bytes else serialise(response)
        series.sent_bytes.inc(len(data))
        return data

    return counting


# By whether the request and the response are streams.
_HANDLER: dict[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
