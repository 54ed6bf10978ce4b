"""What happens around every handler of a server: errors become statuses, calls are counted.

Handlers are given to gRPC as if all took streams of bytes: so it is known who calls, and whether
the call is refused, before its request is read, and reading has an end (`requests.py`).

Handlers raise `hfmds.errors` and nothing more. Anything else is our own fault: the caller gets an
error id, the log gets the traceback under that id. gRPC's own services (health, reflection) have
limits of their own (`supervision.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import grpc

from hfmds.errors import HfmdsError
from hfmds.service.limits.limits import Limits
from hfmds.service.limits.log_throttle import Seldom
from hfmds.service.limits.throttle import Throttle, Throttled, Turn
from hfmds.service.monitoring.rpc_metrics import MethodMetrics, RpcMetrics
from hfmds.service.monitoring.tracing import serving
from hfmds.service.security.access import (
    IN_QUARANTINE,
    WHOEVER,
    Access,
    device_of,
    require_access,
    require_own,
)
from hfmds.service.security.caller import Caller, Recognise, remember
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.revocation_gate import Gate, GatedCall
from hfmds.service.server.read_deadline import Patience
from hfmds.service.server.requests import Requests
from hfmds.service.server.supervision import Supervision
from hfmds.service.status import metadata_of, status_of

log = logging.getLogger(__name__)

# A status message travels as metadata, which the other side caps at 8 KiB after escaping.
_MAX_MESSAGE_CHARACTERS = 1000
_MAX_ID_CHARACTERS = 128
# Of one method with one code, in the log: strangers must not fill it.
_REFUSALS_EVERY_SECONDS, _REFUSALS_AT_ONCE = 0.5, 100
_NOBODY = Caller()


@dataclass(frozen=True, slots=True)
class _Method:
    """What is the same at each call of a method."""

    service: str
    name: str
    series: MethodMetrics
    in_quarantine: bool  # it is also for devices in quarantine
    claims: Gate | None  # what to hold devices against that only say who they are, if it is theirs

    def __str__(self) -> str:
        return f"{self.service}/{self.name}"


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Translates errors, measures calls, keeps to the limits, and keeps out who may not call.

    `access` has by service who may call its methods. `recognise` says who calls; None: nobody can
    be known, and everybody may call everything. `gate` has who is shut out.
    """

    def __init__(
        self,
        metrics: RpcMetrics,
        limits: Limits,
        access: Mapping[str, Access],
        recognise: Recognise | None,
        gate: Gate,
    ) -> None:
        self._metrics = metrics
        self._limits = limits
        self._access = access
        self._recognise = recognise
        self._gate = gate
        self._throttle = Throttle(metrics.process, limits, metrics.refuse)
        self._seldom = Seldom(_REFUSALS_EVERY_SECONDS, _REFUSALS_AT_ONCE)
        self._supervision = Supervision(metrics.process, metrics.refuse, recognise, gate)
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}  # by path; those that exist

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        path = handler_call_details.method  # "/hfmds.v1.CoordinatorService/CheckIn"
        # No handler: gRPC answers UNIMPLEMENTED, and a made-up name never becomes a metric label.
        if handler is None:
            return None
        wrapped = self._handlers.get(path)
        if wrapped is None:
            _, service, method = path.split("/")
            if service.startswith("grpc."):
                wrapped = self._supervision.limited(handler)
            else:
                wrapped = self._wrapped(handler, service, method)
            self._handlers[path] = wrapped
        return wrapped

    def _wrapped(
        self, handler: grpc.RpcMethodHandler, service: str, method: str
    ) -> grpc.RpcMethodHandler:
        inner = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )

        series = self._metrics.of(service, method)
        decode, serialise = _deserialiser(handler, inner, series), _serialiser(handler, series)
        admitted = self._access.get(service, {}).get(method) or ()
        claims = self._gate if self._recognise is None and Kind.DEVICE in admitted else None
        which = _Method(service, method, series, method in IN_QUARANTINE, claims)

        async def asked(call: _Call) -> Any:
            requests = Requests(
                call.context, decode, self._limits, call.patience, look=call.look, slow=call.slow
            )
            return requests if handler.request_streaming else await requests.only()

        async def reply(call: _Call) -> Any:
            return await inner(await asked(call), call.context)

        async def replies(call: _Call) -> None:
            responses = inner(await asked(call), call.context)
            try:
                async for response in responses:
                    await call.send(response, self._limits.message_seconds)
            finally:
                # At once when the caller goes away, and not when it is collected.
                await responses.aclose()

        async def unary(_: Any, context: grpc.aio.ServicerContext) -> Any:
            return await self._answer(which, context, reply)

        # One that sends by itself, and does not yield: so it is told when the caller goes away.
        async def stream(_: Any, context: grpc.aio.ServicerContext) -> None:
            await self._answer(which, context, replies)

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, response_serializer=serialise)
        return grpc.stream_unary_rpc_method_handler(unary, response_serializer=serialise)

    async def _answer(
        self,
        method: _Method,
        context: grpc.aio.ServicerContext,
        respond: Callable[[_Call], Awaitable[Any]],
    ) -> Any:
        """One call: counted, timed, and ended with a status whatever happens inside."""
        started = time.monotonic()
        method.series.in_flight.inc()
        code, refusal = grpc.StatusCode.OK, ""
        metadata: tuple[tuple[str, str], ...] = ()
        gated: GatedCall | None = None
        try:
            with self._throttle.call(context.peer(), started) as turn:
                caller = await self._admit(method, context) if self._recognise else _NOBODY
                with (
                    self._gate.call(
                        caller.certificate, in_quarantine=method.in_quarantine
                    ) as gated,
                    serving(method.service, method.name, context.invocation_metadata),
                    Patience() as patience,
                ):
                    call = _Call(context, turn, caller.identity, gated, method.claims, patience)
                    return await respond(call)
        except (asyncio.CancelledError, GeneratorExit) as stop:
            # The caller hung up, its deadline passed, or we stop.
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
        except _Unsent as unsent:  # there is nobody to answer any more; gRPC knows why
            code = grpc.StatusCode.CANCELLED
            raise unsent.reason from None
        except HfmdsError as error:
            code, refusal, metadata = status_of(error), error.public, metadata_of(error)
            if not isinstance(error, Throttled):
                self._say_refused(str(method), code, str(error))
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

    def _say_refused(self, rpc: str, code: grpc.StatusCode, reason: str) -> None:
        times = self._seldom.times(f"{rpc} {code.name}", time.monotonic())
        if times:
            level = logging.ERROR if code is grpc.StatusCode.INTERNAL else logging.INFO
            fields = {"rpc": rpc, "code": code.name, "reason": reason, "times": times}
            log.log(level, "call refused", extra=fields)

    async def _admit(self, method: _Method, context: grpc.aio.ServicerContext) -> Caller:
        assert self._recognise is not None
        caller = await self._recognise(context)
        access = self._access[method.service]
        if access[method.name] is not WHOEVER:
            require_access(access, method.name, caller.identity)
        remember(caller)
        return caller


class _Unsent(Exception):
    """A response could not be sent."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Call:
    """One call, and whose it is, as far as that is known."""

    __slots__ = ("_claims", "_gated", "_identity", "_turn", "context", "patience")

    def __init__(
        self,
        context: grpc.aio.ServicerContext,
        turn: Turn,
        identity: Identity | None,
        gated: GatedCall,
        claims: Gate | None,
        patience: Patience,
    ) -> None:
        self.context = context
        self.patience = patience
        self._turn = turn
        self._identity = identity
        self._gated = gated
        self._claims = claims
        if identity is not None and identity.kind is Kind.DEVICE:
            turn.of_device(identity.name, time.monotonic())

    async def send(self, response: Any, seconds: float) -> None:
        """Send one of several responses; who does not take it within so many seconds is left."""
        self.patience.begin(self.patience.time() + seconds)
        self._gated.begin_sending()
        try:
            await self.context.write(response)
        except grpc.aio.BaseError as error:
            raise _Unsent(error) from error
        finally:
            self._gated.end_sending()
            self.patience.end()
        self._gated.look()

    def look(self, request: Any) -> None:
        """At each request: NotAllowed if a device speaks for another; Unavailable if too often."""
        if self._identity is not None:
            require_own(self._identity, request)
            return
        # Where callers could be known, what a stranger claims is not even remembered. Of one call,
        # all requests are of the device that the first one names.
        if self._claims is None or self._gated.device_id:
            return
        device_id = device_of(request)[:_MAX_ID_CHARACTERS]
        self._turn.of_device(device_id, time.monotonic())
        self._gated.of_device(device_id, self._claims.exclusions)

    def slow(self) -> None:
        """The request takes too long to come."""
        self._turn.refuse("slow_request", "waited long for the request", time.monotonic())


Decode: TypeAlias = Callable[[bytes], Any]
_ADAPT = "hfmds_adapt_decoder"  # attribute of a handler
_Handler = TypeVar("_Handler")


def decoded(adapt: Callable[[Decode], Decode]) -> Callable[[_Handler], _Handler]:
    """Marks a handler: its requests are decoded by what `adapt` makes of the generated decoder."""

    def mark(handler: _Handler) -> _Handler:
        setattr(handler, _ADAPT, adapt)
        return handler

    return mark


def _deserialiser(handler: grpc.RpcMethodHandler, inner: Any, series: MethodMetrics) -> Decode:
    """As the handler's, counting; one that has none takes bytes."""
    deserialise: Decode = handler.request_deserializer or bytes
    deserialise = getattr(inner, _ADAPT, lambda decode: decode)(deserialise)

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
