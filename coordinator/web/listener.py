"""Takes connections for the web page: few, not many from one place, and none for long.

Nobody is known yet when a connection is taken, so all limits are here: how many there may be, how
long a handshake may take, how large headers may be, how long a request may dawdle (aiohttp's
keep-alive time, which also runs before the first request), and after how long any connection ends,
whatever it is doing. Browsers open another one without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from dataclasses import dataclass

from aiohttp import web

from hfmds.service.limits.throttle import network_of

log = logging.getLogger(__name__)

SERVER = "hfmds"
"""What answers say of who gives them: no version, which would tell what to try."""

_BACKLOG = 64
_PAUSE_SECONDS = 1.0  # when the system has no socket left for us


@dataclass(frozen=True, slots=True)
class Limits:
    """What strangers may use up."""

    connections: int = 100
    connections_per_address: int = 20  # a browser opens six
    handshake_seconds: float = 5.0
    idle_seconds: float = 15.0  # also for all headers of a request to arrive
    life_seconds: float = 120.0
    header_bytes: int = 8190  # of one header, and of the request line
    headers: int = 64


class _Connection(web.RequestHandler):
    """One connection that tells when it is over."""

    __slots__ = ("over",)

    def __init__(self, server: web.Server, limits: Limits) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=limits.idle_seconds,
            lingering_time=1.0,
            access_log=None,  # type: ignore[arg-type]  # None means none
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            max_headers=limits.headers,
        )
        self.over = loop.create_future()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no request; its sender must not fill the log, nor read itself again."""
        response: web.StreamResponse
        if status >= 500:
            response = super().handle_error(request, status, exc, message)
        else:
            # Not the message: it may quote a header, and so a token.
            log.debug("a request to the web page is none: %s", type(exc).__name__)
            response = web.Response(status=status, text="the request is malformed or too large\n")
            response.force_close()
        response.headers.update({"Server": SERVER, "X-Content-Type-Options": "nosniff"})
        return response

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if not self.over.done():
            self.over.set_result(None)


class Places:
    """How many connections there are, in all and of one address or IPv6 network."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_network: Counter[str] = Counter()

    def take(self, address: str) -> bool:
        """Whether there is a place for one more from there; if so, it is taken."""
        network = network_of(address)
        if (
            self._by_network.total() >= self._limits.connections
            or self._by_network[network] >= self._limits.connections_per_address
        ):
            return False
        self._by_network[network] += 1
        return True

    def free(self, address: str) -> None:
        """A connection from there is over."""
        network = network_of(address)
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]


class Listener:
    """Answers on a bound socket through an aiohttp server, until it is closed."""

    def __init__(
        self,
        bound: socket.socket,
        server: web.Server,
        tls: ssl.SSLContext | None,
        limits: Limits,
    ) -> None:
        self._socket = bound
        self._server = server
        self._tls = tls
        self._limits = limits
        self._places = Places(limits)
        self._connections: set[asyncio.Task[None]] = set()
        bound.setblocking(False)
        bound.listen(_BACKLOG)
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Take no more connections and end those there are."""
        everything = {self._accepting, *self._connections}
        for task in everything:
            task.cancel()
        await asyncio.gather(*everything, return_exceptions=True)
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, address = await loop.sock_accept(self._socket)
            except OSError as error:
                log.warning("the web page cannot take connections: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if not self._places.take(address[0]):
                connected.close()
                continue
            task = asyncio.create_task(self._serve(connected, address[0]))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve(self, connected: socket.socket, address: str) -> None:
        limits = self._limits
        try:
            transport, connection = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Connection(self._server, limits),
                connected,
                ssl=self._tls,
                ssl_handshake_timeout=limits.handshake_seconds if self._tls else None,
                ssl_shutdown_timeout=1.0 if self._tls else None,
            )
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(limits.life_seconds):
                        await connection.over
            finally:
                transport.abort()
        except (OSError, ssl.SSLError) as error:
            log.debug("a connection to the web page failed: %s", error)
        finally:
            connected.close()
            self._places.free(address)
