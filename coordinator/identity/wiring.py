"""Builds the objects that decide who belongs to the fleet, and serves the token port."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import Engine

from coordinator.api.admin_service import AdminServicer
from coordinator.api.fleet_service import (
    EnrolmentServicer,
    FleetServicer,
    PresentDevices,
    RenewalServicer,
)
from coordinator.identity.device_issuer import DeviceIssuer
from coordinator.identity.enrolment import DeviceEnrolment
from coordinator.identity.fleet_records import FleetRecords
from coordinator.identity.members import Members
from coordinator.identity.nonces import Nonces
from coordinator.identity.revocation_sync import GuardedServer, RevocationSync
from coordinator.identity.tokens import Tokens
from coordinator.settings import CoordinatorSettings
from hfmds.pki.folder import read_issuer
from hfmds.service.limits.limits import Limits
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.process.shutdown import Shutdown
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.server.server import GrpcServer

# Strangers can call this port, so its limits are low.
_TOKEN_LIMITS = Limits(
    connections=1_000,
    connection_calls=10,
    calls=200,
    calls_per_second=200.0,
    message_bytes=256 * 1024,
    message_seconds=5.0,
    requests_seconds=5.0,
)


@dataclass(frozen=True, slots=True)
class FleetIdentity:
    """The objects of this package, ready to serve."""

    tokens: Tokens
    revocations: RevocationSync
    enrolment: DeviceEnrolment
    members: Members
    devices: PresentDevices

    def add_to(self, server: GrpcServer) -> None:
        """Serve the calls of certified devices and of admins."""
        RenewalServicer(self.enrolment).add_to(server)
        self._fleet_servicer().add_to(server)

    @asynccontextmanager
    async def serving_tokens(
        self,
        settings: CoordinatorSettings,
        metrics: RpcMetrics,
        admin: AdminServicer,
        shutdown: Shutdown,
    ) -> AsyncIterator[dict[str, str]]:
        """Serve the token port inside the block, if it is set; give its address for the file."""
        if settings.token_listen is None:
            yield {}
            return
        server = GrpcServer(
            settings.token_listen,
            metrics,
            limits=_TOKEN_LIMITS,
            tls=settings.tls,
            holder=self.tokens.holder,
            gate=self.revocations.token_gate,
            supervised=False,
            setting="HFMDS_TOKEN_LISTEN",
        )
        EnrolmentServicer(self.enrolment).add_to(server)
        self._fleet_servicer().add_to(server)
        admin.add_to(server)
        async with server.serving(shutdown):
            yield {"tokens": server.address}

    def _fleet_servicer(self) -> FleetServicer:
        return FleetServicer(
            self.tokens, self.members, self.enrolment.issuer, self.revocations, self.devices
        )


def open_identity(
    settings: CoordinatorSettings,
    engine: Engine,
    gate: Gate,
    store: GuardedServer,
    devices: PresentDevices,
) -> FleetIdentity:
    """Open the identity records of the database, with the issuer that the settings name."""

    def authority() -> bytes:
        return settings.tls.authority.read_bytes() if settings.tls else b""

    issuer = None
    if settings.issuer_certificate and settings.issuer_key:
        issuer = read_issuer(settings.issuer_certificate, settings.issuer_key, authority())
    fleet = FleetRecords(engine, time.time)
    tokens, members = Tokens(fleet), Members(fleet)
    device_issuer = DeviceIssuer(issuer, authority, settings.certificate_seconds)
    nonces = Nonces(fleet.nonce_key, fleet.now)
    enrolment = DeviceEnrolment(fleet, tokens, nonces, device_issuer)
    revocations = RevocationSync(fleet, members, tokens, gate, store)
    return FleetIdentity(tokens, revocations, enrolment, members, devices)
