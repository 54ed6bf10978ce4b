"""The frame around every handler of a server: admission, limits, revocation, errors, metrics.

The frame registers every method as one that takes a stream. So it admits a caller before it reads
the request, and every request has a deadline. gRPC caps sizes before that (`Limits.options`).

Handlers raise `hfmds.errors` and nothing else. Any other exception is a fault of this program: the
caller gets an error id, and the log has the traceback under that id.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from hfmds.errors import HfmdsError, InvalidInput
from hfmds.service.limits.limits import BURST_SECONDS, Limits
from hfmds.service.limits.rate import Rate
from hfmds.service.limits.throttle import Throttle
from hfmds.service.monitoring.rpc_metrics import MethodMetrics, RpcMetrics
from hfmds.service.monitoring.tracing import serving
from hfmds.service.security.caller import remember
from hfmds.service.security.guard import Guard
from hfmds.service.security.revocation_gate import GatedCall
from hfmds.service.status import metadata_of, status_of

log = logging.getLogger(__name__)

# A status message travels as metadata, which the other side caps at 8 KiB after escaping.
_MAX_MESSAGE_CHARACTERS = 1000
_REFUSALS_PER_SECOND = 2.0  # in the log, for each method and status

# Health and reflection have limits of their own: a busy server still answers its supervisor.
_SUPERVISION = Limits(calls=50, calls_per_second=200.0, message_bytes=1024)


@dataclass(frozen=True, slots=True)
class _Method:
    """A method of the server, with everything that its calls share."""

    service: str
    name: str
    handler: grpc.RpcMethodHandler
    series: MethodMetrics
    throttle: Throttle
    limits: Limits

    def __str__(self) -> str:
        return f"{self.service}/{self.name}"


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Admits, limits, measures and cuts calls, and translates their errors.

    `guard` knows the callers, and decides which calls they may make.
    """

    def __init__(self, metrics: RpcMetrics, limits: Limits, guard: Guard) -> None:
        self._metrics = metrics
        self._limits = limits
        self._guard = guard
        # Streams of supervisors have their own count, so that they never displace health checks.
        self._throttle = Throttle(metrics.process, limits, metrics.refuse)
        self._checks = Throttle(metrics.process, _SUPERVISION, metrics.refuse)
        self._streams = Throttle(metrics.process, _SUPERVISION, metrics.refuse)
        self._log_rate = Rate(_REFUSALS_PER_SECOND, BURST_SECONDS)
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}  # by path

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Give gRPC the framed handler of a path, "/hfmds.v1.CoordinatorService/CheckIn"."""
        handler = await continuation(handler_call_details)
        # gRPC answers UNIMPLEMENTED without a handler. So no caller can make up a metric label.
        if handler is None:
            return None
        path = handler_call_details.method
        if path not in self._handlers:
            self._handlers[path] = self._framed(handler, *path.split("/")[1:])
        return self._handlers[path]

    def _framed(
        self, handler: grpc.RpcMethodHandler, service: str, name: str
    ) -> grpc.RpcMethodHandler:
        throttle, limits = self._throttle, self._limits
        if service.startswith("grpc."):
            throttle = self._streams if handler.response_streaming else self._checks
            limits = _SUPERVISION
        series = self._metrics.of(service, name)
        method = _Method(service, name, handler, series, throttle, limits)
        inner: Callable[..., Any] = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )

        async def answer(_: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> Any:
            async def respond(call: _Call) -> Any:
                requests = call.requests() if handler.request_streaming else await call.request()
                outcome = inner(requests, context)
                if isinstance(outcome, AsyncIterator):
                    return await call.send_all(outcome)
                return await outcome

            return await self._answer(method, context, respond)

        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(
            answer,
            request_deserializer=_counting_deserializer(method),
            response_serializer=_counting_serializer(method),
        )

    async def _answer(
        self,
        method: _Method,
        context: grpc.aio.ServicerContext,
        respond: Callable[[_Call], Awaitable[Any]],
    ) -> Any:
        """Answer one call: count it, time it, and end it with a status in every case."""
        started = time.monotonic()
        method.series.in_flight.inc()
        code, refusal = grpc.StatusCode.OK, ""
        metadata: tuple[tuple[str, str], ...] = ()
        gated: GatedCall | None = None
        try:
            with ExitStack() as frame:
                frame.enter_context(method.throttle.call())
                caller = await self._guard.who_is(context)
                self._guard.require_may(caller, method.service, method.name)
                remember(caller)
                gated = frame.enter_context(self._guard.call(caller, method.name))
                frame.enter_context(
                    serving(method.service, method.name, context.invocation_metadata)
                )
                return await respond(_Call(method, context, self._guard, gated, frame))
        except (asyncio.CancelledError, GeneratorExit) as stop:
            # The caller hung up, its deadline passed, the server stops, or the gate cut the call.
            cut = gated.reason_of_cut(stop) if gated else None
            if cut is None:
                code = grpc.StatusCode.CANCELLED
                raise
            code, refusal, metadata = status_of(cut), cut.public, metadata_of(cut)
            fields = {"rpc": str(method), "code": code.name, "reason": str(cut)}
            log.info("call cut", extra=fields)
        except grpc.aio.AbortError:  # the handler has answered by itself
            code = context.code()
            raise
        except _Unsent as unsent:  # the caller is gone, and gRPC knows why
            code = grpc.StatusCode.CANCELLED
            raise unsent.reason from None
        except HfmdsError as error:
            code, refusal, metadata = status_of(error), error.public, metadata_of(error)
            self._log_refusal(method, code, error)
        except Exception:
            error_id = uuid.uuid4().hex[:12]
            code = grpc.StatusCode.INTERNAL
            refusal = f"internal error {error_id}; the log of {self._metrics.process} has it"
            fields = {"rpc": str(method), "error_id": error_id}
            log.exception("call failed", extra=fields)
        finally:
            method.series.in_flight.dec()
            method.series.answered(code.name).inc()
            method.series.duration.observe(time.monotonic() - started)
        # Last: a caller that hears "no" finds its place free and the call counted.
        return await context.abort(code, refusal[:_MAX_MESSAGE_CHARACTERS], metadata)

    def _log_refusal(self, method: _Method, code: grpc.StatusCode, error: HfmdsError) -> None:
        # Metrics count every refusal. The log has a sample, so that no caller can fill it.
        level = logging.ERROR if code is grpc.StatusCode.INTERNAL else logging.INFO
        if not self._log_rate.takes(f"{method} {code.name}", time.monotonic()):
            level = logging.DEBUG
        fields = {"rpc": str(method), "code": code.name, "reason": str(error)}
        log.log(level, "call refused", extra=fields)


class _Unsent(Exception):
    """gRPC could not send a response."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Call:
    """One admitted call: checks its requests as they come, and sends its responses."""

    def __init__(
        self,
        method: _Method,
        context: grpc.aio.ServicerContext,
        guard: Guard,
        gated: GatedCall,
        frame: ExitStack,
    ) -> None:
        self._method = method
        self._context = context
        self._guard = guard
        self._gated = gated
        self._frame = frame
        self._loop = asyncio.get_running_loop()
        self._requests_end = self._loop.time() + method.limits.requests_seconds
        if gated.device_id:
            self._count_device(gated.device_id)

    def _checked(self, request: Any) -> Any:
        """Return the request; NotAllowed if the caller may not make it."""
        was_named = bool(self._gated.device_id)
        method = self._method
        self._guard.require_request(self._gated, method.service, method.name, request)
        if self._gated.device_id and not was_named:
            self._count_device(self._gated.device_id)
        return request

    async def request(self) -> Any:
        """Return the request of a method that takes one."""
        request = await self._read()
        if request is grpc.aio.EOF:
            raise InvalidInput("the call ended before its request came")
        return self._checked(request)

    async def requests(self) -> AsyncIterator[Any]:
        """Yield the requests of a stream."""
        while (request := await self._read()) is not grpc.aio.EOF:
            yield self._checked(request)

    async def _read(self) -> Any:
        """Wait for the next request; Throttled if it, or all requests, take too long."""
        message_end = self._loop.time() + self._method.limits.message_seconds
        try:
            async with asyncio.timeout_at(min(message_end, self._requests_end)):
                return await self._context.read()
        except TimeoutError:
            self._method.throttle.refuse("slow_request", "waited long for the request")

    async def send_all(self, responses: AsyncIterator[Any]) -> None:
        """Send the responses, and close their source at once when the caller goes away."""
        try:
            async for response in responses:
                with self._gated.sending():
                    await self._send(response)
        finally:
            if isinstance(responses, AsyncGenerator):
                await responses.aclose()

    async def _send(self, response: Any) -> None:
        try:
            async with asyncio.timeout(self._method.limits.message_seconds):
                await self._context.write(response)
        except TimeoutError:
            # The caller does not take the response, so it would not take a status either.
            raise asyncio.CancelledError from None
        except grpc.aio.BaseError as error:
            raise _Unsent(error) from error

    def _count_device(self, device_id: str) -> None:
        self._frame.enter_context(self._method.throttle.device_call(device_id))


def _counting_deserializer(method: _Method) -> Callable[[bytes], Any]:
    """Wrap the handler's deserializer. A handler without one takes bytes."""
    deserialize: Callable[[bytes], Any] = method.handler.request_deserializer or bytes

    def counting(data: bytes) -> Any:
        method.series.received_bytes.inc(len(data))
        if len(data) > method.limits.message_bytes:
            raise InvalidInput(f"a request of more than {method.limits.message_bytes} bytes")
        try:
            return deserialize(data)
        except DecodeError:
            raise InvalidInput("the request is not a message of this method's type") from None

    return counting


def _counting_serializer(method: _Method) -> Callable[[Any], bytes]:
    """Wrap the handler's serializer. A handler without one answers in bytes."""
    serialize: Callable[[Any], bytes] = method.handler.response_serializer or bytes

    def counting(response: Any) -> bytes:
        data = serialize(response)
        method.series.sent_bytes.inc(len(data))
        return data

    return counting
