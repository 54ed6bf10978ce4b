"""The HTTP server of the web page: a read-only view of runs, devices and pools (docs/web.md).

Every answer tells the browser to run and load only files of this server. Domain errors become
HTTP answers here, as they become statuses at the gRPC port. Limits for addresses and connections
belong to the proxy in front of the server (k8s/components/edge-proxy).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from coordinator.web.html_pages import HtmlPages
from coordinator.web.json_api import JsonApi
from coordinator.web.page_access import PageAccess
from coordinator.web.refusals import status_of
from coordinator.web.web_tls import server_context
from hfmds.errors import HfmdsError
from hfmds.service.process.address import bound_socket, join_address, split_address
from hfmds.service.security.tls import TlsFiles

log = logging.getLogger(__name__)

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "Server": "hfmds",  # no version, which would tell an attacker what to try
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_ANSWER_SECONDS = 30.0
_IDLE_SECONDS = 15.0  # of a connection, also before its first request
_MOST_HEADERS = 64
_MOST_HEADER_BYTES = 8190
_MOST_BODY_BYTES = 4096  # the login form is the largest body
_BACKLOG = 64

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer:
    """Serves the page. Create it inside the running event loop."""

    def __init__(
        self,
        listen: str,
        tls: TlsFiles | None,
        access: PageAccess,
        api: JsonApi,
        idle_seconds: float = _IDLE_SECONDS,
    ) -> None:
        self._listen = listen
        self._tls = tls
        self._idle_seconds = idle_seconds
        self._address: str | None = None
        self._application = web.Application(
            middlewares=[_translating], client_max_size=_MOST_BODY_BYTES
        )
        self._application.on_response_prepare.append(_protect)
        api.add_to(self._application)
        HtmlPages(access).add_to(self._application)

    @property
    def address(self) -> str:
        """The address of the page, `http://host:port`, once it is served."""
        if self._address is None:
            raise RuntimeError("the web page is not served yet")
        return self._address

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve the page inside the block."""
        context = server_context(self._tls) if self._tls else None
        bound = bound_socket(self._listen, "HFMDS_WEB_LISTEN")
        host, port = split_address(self._listen)[0], bound.getsockname()[1]
        self._address = f"{'https' if context else 'http'}://{join_address(host, port)}"
        runner = web.AppRunner(
            self._application,
            access_log=None,
            logger=_connection_log(),
            keepalive_timeout=self._idle_seconds,
            max_line_size=_MOST_HEADER_BYTES,
            max_field_size=_MOST_HEADER_BYTES,
            max_headers=_MOST_HEADERS,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        try:
            await web.SockSite(runner, bound, ssl_context=context, backlog=_BACKLOG).start()
            log.info("web page", extra={"web": self._address})
            yield
        finally:
            await runner.cleanup()


@web.middleware
async def _translating(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into answers. A fault of this program gets an id and a traceback in the log."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await handler(request)
    except web.HTTPException as answer:
        if answer.status < 400:
            raise
        return _refusal(answer.status, answer.reason, _allowed(answer))
    except TimeoutError:
        return _refusal(503, f"the answer took more than {_ANSWER_SECONDS:.0f} s; ask again")
    except HfmdsError as error:
        status = status_of(error)
        _log_refusal(request.path, status, error)
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        return _refusal(status, error.public, headers)
    except Exception:
        error_id = uuid.uuid4().hex[:12]
        log.exception("page failed", extra={"path": request.path, "error_id": error_id})
        return _refusal(500, f"internal error {error_id}; the log of coordinator has it")


def _log_refusal(path: str, status: int, error: HfmdsError) -> None:
    level = logging.DEBUG  # strangers cause most refusals
    if status == 500:
        level = logging.ERROR
    elif str(error) != error.public:  # only the log has the cause
        level = logging.WARNING
    log.log(level, "page refused", extra={"path": path, "reason": str(error)})


def _connection_log() -> logging.Logger:
    """Return a log for aiohttp that skips malformed requests: they may quote a token."""

    def is_no_malformed_request(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))

    connection_log = log.getChild("connections")
    connection_log.addFilter(is_no_malformed_request)
    return connection_log


def _allowed(answer: web.HTTPException) -> Mapping[str, str]:
    return {"Allow": answer.headers["Allow"]} if "Allow" in answer.headers else {}


def _refusal(status: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": reason}, status=status, headers=headers)


async def _protect(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
