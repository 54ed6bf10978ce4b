"""The one mapping between `hfmds.errors` and gRPC status codes, both ways."""

from __future__ import annotations

import math
from collections.abc import Mapping

import grpc

from hfmds.errors import (
    ConfigurationError,
    Conflict,
    CorruptData,
    HfmdsError,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotFound,
    TooLate,
    Unavailable,
    WrongState,
)
from hfmds.service.client.peer import Peer

STATUS_OF: Mapping[type[HfmdsError], grpc.StatusCode] = {
    InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    CorruptData: grpc.StatusCode.DATA_LOSS,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Conflict: grpc.StatusCode.ALREADY_EXISTS,
    WrongState: grpc.StatusCode.FAILED_PRECONDITION,
    TooLate: grpc.StatusCode.ABORTED,
    LimitExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NotAllowed: grpc.StatusCode.PERMISSION_DENIED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    # The server's own fault: nothing the caller could put right.
    ConfigurationError: grpc.StatusCode.INTERNAL,
    HfmdsError: grpc.StatusCode.INTERNAL,
}

_ERROR_OF: Mapping[grpc.StatusCode, type[HfmdsError]] = {
    **{code: error for error, code in STATUS_OF.items()},
    grpc.StatusCode.INTERNAL: HfmdsError,
    # Codes only gRPC itself, a proxy or an older server sends.
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,  # the server went away in mid-call
    grpc.StatusCode.UNAUTHENTICATED: NotAllowed,
    grpc.StatusCode.OUT_OF_RANGE: InvalidInput,
    grpc.StatusCode.UNIMPLEMENTED: ConfigurationError,
}


REASON_KEY = "hfmds-reason"
"""The trailing metadata in which ABORTED says, for programs, why."""

RETRY_KEY = "hfmds-retry-after-seconds"
"""The trailing metadata in which UNAVAILABLE may say when to try again."""

# How gRPC tells that the answer was plain HTTP, and no server's of ours: a proxy has none behind it
# just now, or does not let us through. It makes a code of it that ours would mean for good.
_NOT_OURS = "Received http2 header with status"

# gRPC's own word for it: below 0, a channel must not try again by itself, as ours do very soon.
_LEAVE_IT_TO_THE_CALLER = ("grpc-retry-pushback-ms", "-1")


def metadata_of(error: HfmdsError) -> tuple[tuple[str, str], ...]:
    """What a server sends beside the status when a handler raises `error`."""
    if isinstance(error, TooLate) and error.reason:
        return ((REASON_KEY, error.reason),)
    if isinstance(error, Unavailable) and error.retry_after_seconds is not None:
        return ((RETRY_KEY, f"{error.retry_after_seconds:.3f}"), _LEAVE_IT_TO_THE_CALLER)
    return ()


def status_of(error: HfmdsError) -> grpc.StatusCode:
    """The status a server answers with when a handler raises `error`."""
    return next(STATUS_OF[cls] for cls in type(error).__mro__ if cls in STATUS_OF)


def error_from(rpc_error: grpc.aio.AioRpcError, peer: Peer) -> HfmdsError:
    """The error a failed call to `peer` means here, with the server's own message in it."""
    code = rpc_error.code()
    said = rpc_error.details() or code.name
    retry_after_seconds = _seconds(_told(rpc_error, RETRY_KEY))
    if said.startswith(_NOT_OURS):
        code = grpc.StatusCode.UNAVAILABLE
    match code:
        case grpc.StatusCode.UNAVAILABLE if retry_after_seconds is not None:
            return Unavailable(f"{said} (answer of {peer})", retry_after_seconds)
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            # Who is kept out by TLS hears no more than that the connection was closed.
            files, none = "are our HFMDS_TLS_ files of its fleet", "does it serve without TLS"
            message = (
                f"{peer} is unavailable ({said}); is it running, is {peer.setting} its address, "
                f"and {files if peer.tls else none}?"
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            message = f"{peer} did not answer in time ({said})"
        case grpc.StatusCode.UNIMPLEMENTED:
            message = (
                f"{peer} does not know this call ({said}); does {peer.setting} name another "
                f"service, or one of another version?"
            )
        case _:
            message = f"{said} (answer of {peer})"
    if code is grpc.StatusCode.ABORTED:
        return TooLate(message, _told(rpc_error, REASON_KEY))
    return _ERROR_OF.get(code, HfmdsError)(message)


def _told(rpc_error: grpc.aio.AioRpcError, wanted: str) -> str:
    """What a server sent beside the status; empty: nothing."""
    for key, value in rpc_error.trailing_metadata() or ():
        if key == wanted:
            return str(value)
    return ""


def _seconds(told: str) -> float | None:
    """A time that a server told; None if it told none, or none that makes sense."""
    try:
        seconds = float(told)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
