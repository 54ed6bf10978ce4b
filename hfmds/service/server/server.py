"""The gRPC server of this project: limited, measured, with health and reflection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from hfmds.errors import ConfigurationError
from hfmds.service.limits.limits import Limits
from hfmds.service.limits.open_files import connections_allowed
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.process.address import bound_socket, join_address, split_address
from hfmds.service.process.shutdown import Shutdown
from hfmds.service.security.access import Access
from hfmds.service.security.caller import Caller, Recognise, by_certificate, by_token
from hfmds.service.security.guard import Guard
from hfmds.service.security.issuers import Issuers
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.security.tls import TlsFiles
from hfmds.service.server.interceptors import CallInterceptor

log = logging.getLogger(__name__)

_OPTIONS = (
    # A second server on the port must fail. Otherwise each would get half of the calls.
    ("grpc.so_reuseport", 0),
    # The call of a device that vanished behind its NAT ends after 80 s.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Devices ping every 30 s during a call (channel.py). More pings than this are abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 15_000),
    # A training device needs no open connection.
    ("grpc.max_connection_idle_ms", 5 * 60_000),
    # TLS checks a certificate only when a connection begins, so connections end after an hour. Open
    # calls get as much time as a transfer may take.
    ("grpc.max_connection_age_ms", 60 * 60_000),
    ("grpc.max_connection_age_grace_ms", 15 * 60_000),
)

_DEFAULT = Limits()
_STOPPING = "stopping"
_LOOK_EVERY_SECONDS = 1.0


class GrpcServer:
    """Serves the added services. Health checks hear "not ready" until `set_ready`.

    With `tls`, callers need a certificate of the authorities, and may call what the access tables
    say. With `holder`, they need a token instead, which `holder` looks up. `gate` has the revoked
    parties. Without `supervised`, the server has no health checks and no reflection. Create it
    inside the running event loop.
    """

    def __init__(
        self,
        listen: str,
        metrics: RpcMetrics,
        *,
        limits: Limits = _DEFAULT,
        tls: TlsFiles | None = None,
        holder: Callable[[str], Caller] | None = None,
        gate: Gate | None = None,
        supervised: bool = True,
        setting: str = "HFMDS_LISTEN",
    ) -> None:
        self._listen = listen
        self._setting = setting
        self._metrics = metrics
        self._address: str | None = None
        self._unready_reason: str | None = "starting"
        self._health = health.aio.HealthServicer()
        self._tls = tls
        self._supervised = supervised
        self._with_certificates = holder is None
        self._guard = Guard(_recognise(tls, holder), gate or Gate())
        interceptor = CallInterceptor(metrics, limits, self._guard)
        options = (*_OPTIONS, *limits.options(connections_allowed()))
        self._server = grpc.aio.server(interceptors=(interceptor,), options=options)

    def add(
        self,
        register: Callable[[Any, grpc.aio.Server], None],
        servicer: object,
        service_name: str,
        access: Access,
    ) -> None:
        """Serve `servicer`, with its generated `add_..._to_server`. Call this before `start`.

        `access` has the kinds of callers of each method.
        """
        register(servicer, self._server)
        self._guard.access[service_name] = access
        self._metrics.show(service_name, access)

    async def start(self) -> None:
        """Bind and answer; ConfigurationError if the address is not available."""
        if self._supervised:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
            names = (*self._guard.access, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        await self._publish_health()
        # gRPC does not tell why a bind failed. A socket of our own does.
        bound_socket(self._listen, self._setting).close()
        try:
            port = self._bind()
        except RuntimeError as error:
            raise ConfigurationError(
                f"cannot listen on {self._listen}: {error}; set {self._setting}"
            ) from error
        self._address = join_address(split_address(self._listen)[0], port)
        await self._server.start()

    def _bind(self) -> int:
        if self._tls is None:
            port = self._server.add_insecure_port(self._listen)
        else:
            credentials = self._tls.server_credentials(of_callers_too=self._with_certificates)
            port = self._server.add_secure_port(self._listen, credentials)
        return int(port)

    @property
    def address(self) -> str:
        """The bound `host:port`, known after `start`."""
        if self._address is None:
            raise RuntimeError("the server has not been started")
        return self._address

    async def set_ready(self, ready: bool, reason: str = "not ready") -> None:
        """Tell health checks whether to send calls here."""
        if self._unready_reason == _STOPPING:  # for good
            return
        self._unready_reason = None if ready else reason
        await self._publish_health()
        if ready:
            log.info("ready", extra={"grpc": self._address})
        else:
            log.warning("not ready", extra={"reason": reason})

    @asynccontextmanager
    async def following(
        self,
        trouble: Callable[[], str | None],
        every_seconds: float = _LOOK_EVERY_SECONDS,
    ) -> AsyncIterator[None]:
        """Inside the block, be ready whenever `trouble` returns no reason against it."""

        async def follow() -> None:
            while True:
                reason = trouble()
                if (reason is None) != (self._unready_reason is None):
                    await self.set_ready(reason is None, reason or "")
                elif reason is not None and self._unready_reason != _STOPPING:
                    self._unready_reason = reason  # the reason may have changed
                await asyncio.sleep(every_seconds)

        task = asyncio.create_task(follow())
        try:
            yield
        finally:
            task.cancel()

    def unready_reason(self) -> str | None:
        """Return why calls should not come here now; None if they may."""
        return self._unready_reason

    async def stop(self, grace_seconds: float) -> None:
        """Refuse new calls, give open calls the grace to end, then cut them."""
        self._unready_reason = _STOPPING
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)

    @asynccontextmanager
    async def serving(self, shutdown: Shutdown) -> AsyncIterator[None]:
        """Serve inside the block; stop in every case, so that the process can exit."""
        await self.start()
        shutdown.add(self.stop)
        try:
            yield
        finally:
            await shutdown.stop()

    async def _publish_health(self) -> None:
        statuses = health_pb2.HealthCheckResponse
        status = statuses.NOT_SERVING if self._unready_reason else statuses.SERVING
        for name in ("", *self._guard.access):
            await self._health.set(name, status)


def _recognise(tls: TlsFiles | None, holder: Callable[[str], Caller] | None) -> Recognise | None:
    """Choose how to know callers; None if nobody can be known, for lack of TLS."""
    if tls is None:
        return None
    return by_token(holder) if holder else by_certificate(Issuers(tls))
