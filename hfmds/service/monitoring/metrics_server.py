"""The HTTP side of a process: /metrics for Prometheus, /healthz and /readyz for its supervisor.

The port serves plain HTTP to everybody who reaches it, so a network policy should let in only the
supervisor and Prometheus.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import MetricsHandler

from hfmds.service.process.address import bound_socket, join_address

log = logging.getLogger(__name__)

_CLIENT_SECONDS = 10.0  # the longest wait for a client that reads or writes nothing


class MetricsServer:
    """Answers in threads of its own until `close`, even if the event loop is stuck.

    Those threads call `unready_reason`: why the process cannot do its work now, or None.
    """

    def __init__(
        self,
        listen: str,
        registry: CollectorRegistry,
        unready_reason: Callable[[], str | None],
        *,
        client_seconds: float = _CLIENT_SECONDS,
    ) -> None:
        registry_of_process = registry

        class Handler(MetricsHandler):
            server_version, sys_version = "hfmds", ""
            timeout = client_seconds
            registry = registry_of_process

            def do_GET(self) -> None:
                match self.path.partition("?")[0]:
                    case "/metrics":
                        super().do_GET()
                    case "/healthz":
                        self._reply(HTTPStatus.OK, "alive")
                    case "/readyz":
                        reason = unready_reason()
                        status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
                        self._reply(status, reason or "ready")
                    case _:
                        self._reply(HTTPStatus.NOT_FOUND, "try /metrics, /healthz or /readyz")

            def _reply(self, status: HTTPStatus, text: str) -> None:
                body = f"{text}\n".encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        bound = bound_socket(listen, "HFMDS_METRICS_LISTEN")
        self.address = join_address(*bound.getsockname()[:2])
        self._server = _Server(bound.getsockname()[:2], Handler, False)
        self._server.socket.close()
        self._server.socket = bound
        self._server.server_activate()
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


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("metrics request failed", exc_info=True)  # a client hung up
