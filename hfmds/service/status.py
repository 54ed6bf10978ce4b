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
"""The trailing metadata of ABORTED that tells programs the reason."""

RETRY_KEY = "hfmds-retry-after-seconds"
"""The trailing metadata of UNAVAILABLE that may tell when to try again."""

# gRPC's words for an answer in plain HTTP: a proxy has no server at the moment, or refuses us. gRPC
# turns it into a code that our servers use for permanent errors.
_NOT_OURS = "Received http2 header with status"

# A negative value keeps gRPC's channels from an early retry of their own.
_LEAVE_IT_TO_THE_CALLER = ("grpc-retry-pushback-ms", "-1")


def metadata_of(error: HfmdsError) -> tuple[tuple[str, str], ...]:
    """Return the metadata that a server sends with the status of this error."""
    if isinstance(error, TooLate) and error.reason:
        return ((REASON_KEY, error.reason),)
    if isinstance(error, Unavailable) and error.retry_after_seconds is not None:
        return ((RETRY_KEY, f"{error.retry_after_seconds:.3f}"), _LEAVE_IT_TO_THE_CALLER)
    return ()


def status_of(error: HfmdsError) -> grpc.StatusCode:
    """Return the status that a server sends for this error."""
    return next(STATUS_OF[cls] for cls in type(error).__mro__ if cls in STATUS_OF)


def error_from(rpc_error: grpc.aio.AioRpcError, peer: Peer) -> HfmdsError:
    """Turn a failed call to `peer` into an error with the server's message in it."""
    code = rpc_error.code()
    details = rpc_error.details() or code.name
    retry_after_seconds = _seconds(_metadata(rpc_error, RETRY_KEY))
    if details.startswith(_NOT_OURS):
        code = grpc.StatusCode.UNAVAILABLE
    match code:
        case grpc.StatusCode.UNAVAILABLE if retry_after_seconds is not None:
            return Unavailable(f"{details} (answer of {peer})", retry_after_seconds)
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            # A caller that TLS refuses sees only that the connection ends.
            files, none = "are our HFMDS_TLS_ files of its fleet", "does it serve without TLS"
            message = (
                f"{peer} is unavailable ({details}); is it running, is {peer.setting} its address, "
                f"and {files if peer.tls else none}?"
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            message = f"{peer} did not answer in time ({details})"
        case grpc.StatusCode.UNIMPLEMENTED:
            message = (
                f"{peer} does not know this call ({details}); does {peer.setting} name another "
                f"service, or one of another version?"
            )
        case _:
            message = f"{details} (answer of {peer})"
    if code is grpc.StatusCode.ABORTED:
        return TooLate(message, _metadata(rpc_error, REASON_KEY))
    return _ERROR_OF.get(code, HfmdsError)(message)


def _metadata(rpc_error: grpc.aio.AioRpcError, wanted: str) -> str:
    """Return a value of the trailing metadata; empty if the server sent none."""
    for key, value in rpc_error.trailing_metadata() or ():
        if key == wanted:
            return str(value)
    return ""


def _seconds(text: str) -> float | None:
    """Parse the time that a server sent; None if it sent none, or no valid one."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
