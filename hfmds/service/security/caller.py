"""Who makes a call, by a certificate or a token, and what logs that outlive it call that party."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import unquote

import grpc

from hfmds.service.security.certificates import Certificate, certificate_of
from hfmds.service.security.identity import Identity, Kind


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of who calls."""

    identity: Identity | None = None  # None: it is nobody of ours
    certificate: Certificate | None = None  # that it showed, or what stands for its token


Recognise = Callable[[grpc.aio.ServicerContext], Awaitable[Caller]]
"""How a server knows its callers."""

# Each call has a task of its own, and so a context.
_identity: ContextVar[Identity | None] = ContextVar("identity", default=None)

_BEARER = "Bearer "
_MAX_TOKEN_CHARACTERS = 200


async def by_certificate(context: grpc.aio.ServicerContext) -> Caller:
    """For a port where TLS asks every caller for a certificate."""
    certificate = certificate_of(context)
    return Caller(certificate.identity if certificate else None, certificate)


def by_token(holder: Callable[[str], Caller]) -> Recognise:
    """For a port where callers have a token, or are strangers; `holder` knows whose it is."""

    async def recognise(context: grpc.aio.ServicerContext) -> Caller:
        for key, value in context.invocation_metadata() or ():
            if key == "authorization" and isinstance(value, str) and value.startswith(_BEARER):
                token = value.removeprefix(_BEARER)
                if len(token) <= _MAX_TOKEN_CHARACTERS:
                    return await asyncio.to_thread(holder, token)
        return Caller()

    return recognise


def remember(identity: Identity | None) -> None:
    """Within a call: note whose it is."""
    _identity.set(identity)


def may_as(kind: Kind) -> bool:
    """Within a call: whether its caller is of this kind; where nobody is known, everybody is."""
    identity = _identity.get()
    return identity is None or identity.kind is kind


def caller(context: grpc.aio.ServicerContext) -> str:
    """Who the caller is; of a stranger, the address the call came from."""
    identity = _identity.get()
    if identity is not None:
        return str(identity)
    # "ipv4:10.0.0.7:41234", "ipv6:%5B::1%5D:41234": the port says nothing of who it was.
    return unquote(context.peer()).rpartition(":")[0] or "unknown"
