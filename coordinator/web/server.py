"""The web page of the coordinator: a read-only look at runs, devices and pools (docs/web.md).

Every answer says what a browser may do with it: run and load what comes from here, and nothing
else. Errors of the domain become answers here, as they become statuses at the gRPC port.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from coordinator.api.operations import Oversight
from coordinator.runs.runs import Runs
from coordinator.web.admission import Admission, Holder
from coordinator.web.api import Api
from coordinator.web.gallery import SnapshotStore
from coordinator.web.listener import SERVER, Limits, Listener
from coordinator.web.pages import Pages
from coordinator.web.refusals import status_of
from coordinator.web.tls import server_context
from hfmds.errors import HfmdsError
from hfmds.service.limits.log_throttle import Seldom
from hfmds.service.process.address import bound_socket, is_loopback, join_address, split_address
from hfmds.service.security.issuers import Issuers
from hfmds.service.security.revocation_gate import Gate
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
    "Server": SERVER,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_ANSWER_SECONDS = 30.0
_seldom = Seldom(every_seconds=10.0)  # of what only the log is told
_MOST_BODY_BYTES = 4096  # of the form to log in

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer:
    """Serves the page. Make it inside the running event loop."""

    def __init__(
        self,
        listen: str,
        runs: Runs,
        oversight: Oversight,
        store: SnapshotStore,
        *,
        tls: TlsFiles | None = None,
        holder: Holder | None = None,
        gate: Gate | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`holder` knows the admins' tokens; without it nobody can log in. `gate`: who is out."""
        self._listen = listen
        self._tls = tls
        self._limits = limits or Limits()
        self._address: str | None = None
        self._application = web.Application(
            middlewares=[_translating], client_max_size=_MOST_BODY_BYTES
        )
        self._application.on_response_prepare.append(_protect)
        loopback = is_loopback(split_address(listen)[0])
        gate = gate or Gate(clock)
        admission = Admission(
            issuers=Issuers(tls.authority) if tls else None,
            only_loopback=loopback and not tls,
            holder=holder,
            gate=gate,
            clock=clock,
        )
        Api(runs, oversight, store, admission, gate, clock).add_to(self._application)
        Pages(admission).add_to(self._application)

    @property
    def address(self) -> str:
        """Where the page is, once it is served: `http://host:port`."""
        if self._address is None:
            raise RuntimeError("the web page is not served yet")
        return self._address

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answers inside."""
        context = server_context(self._tls) if self._tls else None
        bound = bound_socket(self._listen, "HFMDS_WEB_LISTEN")
        host, port = split_address(self._listen)[0], bound.getsockname()[1]
        self._address = f"{'https' if context else 'http'}://{join_address(host, port)}"
        runner = web.AppRunner(self._application, shutdown_timeout=1.0)
        await runner.setup()
        assert runner.server is not None
        listener = Listener(bound, runner.server, context, self._limits)
        log.info("web page", extra={"web": self._address})
        try:
            yield
        finally:
            await listener.close()
            await runner.cleanup()


@asynccontextmanager
async def serving_page(
    listen: str | None,
    runs: Runs,
    oversight: Oversight,
    store: SnapshotStore,
    *,
    tls: TlsFiles | None,
    holder: Holder,
    gate: Gate,
) -> AsyncIterator[dict[str, str]]:
    """The page is served inside, if it is to be somewhere; its address, as the file has it."""
    if listen is None:
        yield {}
        return
    server = WebServer(listen, runs, oversight, store, tls=tls, holder=holder, gate=gate)
    async with server.serving():
        yield {"web": server.address}


@web.middleware
async def _translating(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors become answers; those that are our own fault get an id, and a line in the log."""
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
        _say_refused(request.path, status, error)
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        return _refusal(status, error.public, headers)
    except Exception:
        error_id = uuid.uuid4().hex[:12]
        log.exception("page failed", extra={"path": request.path, "error_id": error_id})
        return _refusal(500, f"internal error {error_id}; the log of coordinator has it")


def _say_refused(path: str, status: int, error: HfmdsError) -> None:
    fields = {"path": path, "reason": str(error)}
    if status == 500:
        log.error("page refused", extra=fields)
    elif str(error) == error.public:
        log.debug("page refused", extra=fields)
    elif times := _seldom.times("page refused", time.monotonic()):  # strangers ask, too
        log.warning("page refused", extra={**fields, "times": times})


def _allowed(answer: web.HTTPException) -> Mapping[str, str]:
    return {"Allow": answer.headers["Allow"]} if "Allow" in answer.headers else {}


def _refusal(status: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": reason}, status=status, headers=headers)


async def _protect(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
