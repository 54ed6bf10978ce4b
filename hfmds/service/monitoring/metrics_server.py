"""The HTTP side of a process: /metrics for Prometheus, /healthz and /readyz for its supervisor.

Whoever reaches the port may ask, so little is taken of anybody: one short request on a connection,
in a few seconds, and few connections at once.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import BaseServer, ThreadingTCPServer
from types import TracebackType
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from hfmds.service.process.address import bound_socket, join_address

log = logging.getLogger(__name__)

_TEXT = "text/plain; charset=utf-8"

_CONNECTIONS = 32  # at once; more are closed as soon as they are there
_REQUEST_BYTES = 16 * 1024
_EXCHANGE_SECONDS = 10.0  # for the request to come whole, and again for the answer to be taken


class MetricsServer:
    """Answers in threads of its own from construction to `close`, whatever the event loop does.

    `unready_reason` says why the process cannot do its work now, or None when it can; it is called
    in those threads.
    """

    def __init__(
        self,
        listen: str,
        registry: CollectorRegistry,
        unready_reason: Callable[[], str | None],
        *,
        setting: str = "HFMDS_METRICS_LISTEN",
        connections: int = _CONNECTIONS,
        exchange_seconds: float = _EXCHANGE_SECONDS,
    ) -> None:
        def handler(request: Any, client_address: Any, server: BaseServer) -> _Handler:
            return _Handler(
                request, client_address, server, registry, unready_reason, exchange_seconds
            )

        self._server = _Server(listen, setting, handler, connections)
        self.address = join_address(*self._server.socket.getsockname()[:2])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="metrics-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Server(ThreadingTCPServer):
    daemon_threads = True

    def __init__(
        self, listen: str, setting: str, handler: Callable[..., _Handler], connections: int
    ) -> None:
        self._places = threading.Semaphore(connections)
        bound = bound_socket(listen, setting)
        self.address_family = bound.family
        super().__init__(bound.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_activate()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("metrics request failed", exc_info=True)  # a scraper that hung up


class _Incoming(io.RawIOBase):
    """What a client sends: so many bytes, all before a time is over."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._until = time.monotonic() + seconds
        self._left = _REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self._until - time.monotonic()
        if seconds <= 0 or self._left <= 0:
            raise TimeoutError("the request is too slow or too large")
        self._connection.settimeout(seconds)
        count = self._connection.recv_into(buffer, min(len(buffer), self._left))
        self._left -= count
        return count


class _Handler(BaseHTTPRequestHandler):
    server_version = "hfmds"
    sys_version = ""

    def __init__(
        self,
        request: Any,
        client_address: Any,
        server: BaseServer,
        registry: CollectorRegistry,
        unready_reason: Callable[[], str | None],
        exchange_seconds: float,
    ) -> None:
        self._registry = registry
        self._unready_reason = unready_reason
        self._exchange_seconds = exchange_seconds
        super().__init__(request, client_address, server)  # answers the request

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Incoming(self.connection, self._exchange_seconds))

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._reply(HTTPStatus.OK, encode(self._registry), content_type)
            case "/healthz":
                self._reply(HTTPStatus.OK, b"alive\n")
            case "/readyz":
                reason = self._unready_reason()
                if reason is None:
                    self._reply(HTTPStatus.OK, b"ready\n")
                else:
                    self._reply(HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n".encode())
            case _:
                self._reply(HTTPStatus.NOT_FOUND, b"only /metrics, /healthz and /readyz are here\n")

    do_HEAD = do_GET  # noqa: N815 (`_reply` leaves the body out)

    def _refuse_method(self) -> None:
        self._reply(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse_method  # noqa: N815

    def _reply(self, status: HTTPStatus, body: bytes, content_type: str = _TEXT) -> None:
        self.connection.settimeout(self._exchange_seconds)  # for all that is sent
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        log.debug(format, *args)
