"""Access to the web page: for the same admins as AdminService, by the same table.

With TLS, the page knows an admin by one of

    a client certificate of the fleet
    `Authorization: Bearer TOKEN`, for scripts
    a session, which a token opened at /login

Without TLS, everybody may see everything, as at the gRPC port. A page on loopback answers only to
names of loopback. Otherwise another site could point its own name here, and read the page in a
browser of this machine.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping

from aiohttp import web

from coordinator.api.admin_service import ADMIN_ACCESS
from coordinator.web.refusals import NotKnown
from coordinator.web.sessions import Sessions
from hfmds.errors import InvalidInput, LimitExceeded, NotAllowed
from hfmds.service.limits.rate import Rate
from hfmds.service.process.address import is_loopback, split_address
from hfmds.service.security.access import require_access
from hfmds.service.security.certificates import Certificate
from hfmds.service.security.identity import Identity
from hfmds.service.security.issuers import Issuers
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.security.tls import TlsFiles

COOKIE = "__Host-hfmds"  # with this prefix, browsers demand Secure and bind it to this host
MOST_TOKEN_CHARACTERS = 512

# Of one address: five tries to log in, then one every twelve seconds. Scripts may ask more often.
_LOGINS_PER_SECOND, _LOGINS_BURST_SECONDS = 1 / 12, 60.0
_BEARERS_PER_SECOND, _BEARERS_BURST_SECONDS = 10.0, 10.0

FindAdmin = Callable[[str], Identity | None]
"""Looks up the identity of a token; None for an unknown token. May block."""


class PageAccess:
    """Admits visitors of the page."""

    def __init__(
        self,
        listen: str,
        tls: TlsFiles | None,
        find_admin: FindAdmin | None,
        gate: Gate,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`find_admin` knows the admins' tokens; without it nobody can log in with one."""
        self._issuers = Issuers(tls) if tls else None
        self._only_loopback = is_loopback(split_address(listen)[0]) and not tls
        self._find_admin = find_admin
        self._gate = gate
        self._sessions = Sessions(clock)
        self._clock = clock
        self._logins = Rate(_LOGINS_PER_SECOND, _LOGINS_BURST_SECONDS)
        self._bearers = Rate(_BEARERS_PER_SECOND, _BEARERS_BURST_SECONDS)

    @property
    def takes_tokens(self) -> bool:
        """Whether visitors can log in."""
        return self._issuers is not None and self._find_admin is not None

    @property
    def quarantined(self) -> Mapping[str, str]:
        """The devices in quarantine, each with the reason."""
        return self._gate.exclusions.quarantined

    async def require(self, request: web.Request, method: str) -> Identity | None:
        """Return the visitor if it may call this method of AdminService; None without TLS."""
        self.require_host(request)
        if self._issuers is None:
            return None
        identity = await self._identity(request, self._issuers)
        if identity is None:
            raise NotKnown("log in with an admin's token, or show an admin's certificate")
        return require_access(ADMIN_ACCESS, method, identity)

    def require_host(self, request: web.Request) -> None:
        """On loopback, refuse a browser that uses another name than this machine's."""
        if self._only_loopback and not is_loopback(_host(request)):
            raise NotAllowed(
                f"this page serves its own machine only, and {request.host[:100]!r} is not a name "
                f"of it; use 127.0.0.1 or localhost"
            )

    async def log_in(self, request: web.Request, token: str) -> str:
        """Open a session for the holder of the token; return its name."""
        _require_own_form(request)
        identity = await self._admin_of_token(request, token, self._logins)
        if identity is None:
            raise NotKnown(
                "this is no admin's token, or it has ended; make one: hfmds pki admin-token"
            )
        require_access(ADMIN_ACCESS, "ListRuns", identity)
        return self._sessions.open(token)

    def log_out(self, request: web.Request) -> None:
        """End the session of the browser."""
        _require_own_form(request)
        self._sessions.end(request.cookies.get(COOKIE, ""))

    async def _identity(self, request: web.Request, issuers: Issuers) -> Identity | None:
        certificate = _certificate(request, issuers)
        if certificate is not None:
            # NotAllowed for a revoked certificate, Unavailable for an expired one.
            with self._gate.call(certificate, in_quarantine=True):
                return certificate.identity
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return await self._admin_of_token(request, token.strip(), self._bearers)
        name = request.cookies.get(COOKIE, "")
        token_of_session = self._sessions.token(name)
        if token_of_session is None or self._find_admin is None:
            return None
        identity = await asyncio.to_thread(self._find_admin, token_of_session)
        if identity is None:
            self._sessions.end(name)
        return identity

    async def _admin_of_token(
        self, request: web.Request, token: str, rate: Rate
    ) -> Identity | None:
        """Look up the token, unless this address tries too many."""
        if not rate.takes(request.remote or "", self._clock()):
            raise LimitExceeded("too many tries from your address; try again in a minute")
        if not (self._find_admin and 0 < len(token) <= MOST_TOKEN_CHARACTERS and token.isascii()):
            return None
        return await asyncio.to_thread(self._find_admin, token)


def _require_own_form(request: web.Request) -> None:
    """NotAllowed if a page of another site made the browser send this form."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise NotAllowed("another site sent this form; log in on the page itself")


def _certificate(request: web.Request, issuers: Issuers) -> Certificate | None:
    """Return the certificate that the browser showed in the handshake; None if it showed none."""
    connection = request.get_extra_info("ssl_object")
    der = connection.getpeercert(binary_form=True) if connection else None
    return issuers.certificate(ssl.DER_cert_to_PEM_cert(der).encode()) if der else None


def _host(request: web.Request) -> str:
    """Return the host that the request names, without its port."""
    try:
        return split_address(request.host)[0]
    except InvalidInput:  # without a port
        return request.host.removeprefix("[").removesuffix("]")
