"""The party that makes a call: how a server knows it, and how a handler asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import unquote

import grpc

from hfmds.service.security.certificates import Certificate
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.issuers import Issuers


@dataclass(frozen=True, slots=True)
class Caller:
    """What the server knows of a caller. A stranger has neither identity nor certificate."""

    identity: Identity | None = None
    certificate: Certificate | None = None  # or what stands for a token


Recognise = Callable[[grpc.aio.ServicerContext], Awaitable[Caller]]
"""How a server knows its callers."""

STRANGER = Caller()

# Each call has a task of its own, and so a context.
_caller: ContextVar[Caller] = ContextVar("caller", default=STRANGER)

_BEARER = "Bearer "
_MAX_TOKEN_CHARACTERS = 200


def by_certificate(issuers: Issuers) -> Recognise:
    """Recognise callers on a port where TLS demands a certificate from every caller."""

    async def recognise(context: grpc.aio.ServicerContext) -> Caller:
        certificates = context.auth_context().get("x509_pem_cert", ())
        if not certificates:
            return STRANGER
        certificate = issuers.certificate(bytes(certificates[0]))
        return Caller(certificate.identity, certificate)

    return recognise


def by_token(holder: Callable[[str], Caller]) -> Recognise:
    """Recognise callers on a port for tokens and strangers; `holder` looks up a token."""

    async def recognise(context: grpc.aio.ServicerContext) -> Caller:
        for key, value in context.invocation_metadata() or ():
            if key == "authorization" and isinstance(value, str) and value.startswith(_BEARER):
                token = value.removeprefix(_BEARER)
                if len(token) <= _MAX_TOKEN_CHARACTERS:
                    return await asyncio.to_thread(holder, token)
        return STRANGER

    return recognise


def remember(caller: Caller) -> None:
    """Within a call: note its caller."""
    _caller.set(caller)


def certificate_shown() -> Certificate | None:
    """Within a call: return the caller's certificate; None if it showed none."""
    certificate = _caller.get().certificate
    return certificate if certificate is not None and certificate.key_sha256 else None


def may_as(kind: Kind) -> bool:
    """Within a call: whether the caller is of this kind. Without TLS, every caller is."""
    identity = _caller.get().identity
    return identity is None or identity.kind is kind


def caller(context: grpc.aio.ServicerContext) -> str:
    """Within a call: name the caller in logs; a stranger is the address of the call."""
    identity = _caller.get().identity
    if identity is not None:
        return str(identity)
    # "ipv4:10.0.0.7:41234", "ipv6:%5B::1%5D:41234": the port tells nothing.
    return unquote(context.peer()).rpartition(":")[0] or "unknown"
