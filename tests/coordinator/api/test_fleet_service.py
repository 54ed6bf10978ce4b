"""Enrolment, revocation and tokens over gRPC, and their settings."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from coordinator.api.fleet_service import EnrolmentServicer, FleetServicer, RenewalServicer
from coordinator.identity.revocation_sync import RevocationSync
from coordinator.settings import CoordinatorSettings
from hfmds.domain.administration.fleet import Role
from hfmds.domain.devices import DeviceProfile
from hfmds.domain.tasks import RetryLater
from hfmds.errors import (
    ConfigurationError,
    NotAllowed,
    NotFound,
    TooLate,
    Unavailable,
    WrongState,
)
from hfmds.pki.device_key import DeviceKey
from hfmds.pki.token_text import Token
from hfmds.service.client.peer import Peer
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.process.settings import load_settings
from hfmds.service.process.shutdown import Shutdown
from hfmds.service.security.caller import Caller, remember
from hfmds.service.security.exclusions import Exclusions
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.security.tls import Bearer, Trust
from hfmds.service.server.server import GrpcServer
from hfmds.v1 import enrolment_pb2
from hfmds.wire.clients.coordinator_client import CoordinatorClient
from hfmds.wire.clients.enrolment_client import EnrolmentClient, RenewalClient
from hfmds.wire.clients.fleet_client import FleetClient
from tests.coordinator.identity.registry_office import Office, certificate, new_issuer
from tests.coordinator.workbench import Workbench, workbench
from tests.support.fleet_certificates import FleetCertificates

PROFILE = DeviceProfile(1, "1", "none")


class NoStore:
    """A store client for tests that send no exclusions."""

    async def set_exclusions(self, version: str, exclusions: Exclusions | None = None) -> str:
        return version


class NoDevices:
    """The devices of tests without rounds."""

    async def leave(self, device_id: str) -> None:
        """Do nothing."""


@asynccontextmanager
async def served(office: Office, bench: Workbench, gate: Gate) -> AsyncIterator[Peer]:
    """Serve without TLS, so that the claimed device id is the identity."""
    server = GrpcServer("127.0.0.1:0", RpcMetrics("books", CollectorRegistry()), gate=gate)
    bench.servicer().add_to(server)
    EnrolmentServicer(office.enrolment).add_to(server)
    RenewalServicer(office.enrolment).add_to(server)
    await server.start()
    try:
        yield Peer("coordinator", server.address, "HFMDS_COORDINATOR")
    finally:
        await server.stop(0)


@asynccontextmanager
async def talk(folder: Path, gate: Gate) -> AsyncIterator[tuple[Peer, Workbench, Office]]:
    office = Office(folder, issuer=new_issuer())
    async with (
        workbench(folder / "bench", gate=gate) as bench,
        served(office, bench, gate) as peer,
    ):
        yield peer, bench, office


async def test_a_device_in_quarantine_gets_a_time_and_a_reason_and_no_work(tmp_path: Path) -> None:
    gate = Gate()
    gate.replace(Exclusions(quarantined={"phone": "noisy"}))

    async with talk(tmp_path, gate) as (peer, bench, _office):
        phone, camera = CoordinatorClient(peer, "phone"), CoordinatorClient(peer, "camera")
        try:
            answer = await phone.check_in(PROFILE, 60.0)
            assert answer == RetryLater(30.0, "device phone is in quarantine: noisy")
            with pytest.raises(TooLate, match="noisy") as over:
                await phone.renew_lease("task")
            assert over.value.reason == "quarantined"
            with pytest.raises(NotFound):
                await camera.renew_lease("task")
            assert isinstance(await camera.check_in(PROFILE, 0.0), RetryLater)
            assert [device.device_id for device in bench.devices()] == ["camera"]
        finally:
            await phone.close()
            await camera.close()


async def test_a_device_enrols_over_the_wire(tmp_path: Path) -> None:
    async with talk(tmp_path, Gate()) as (peer, _bench, office):
        key, client = DeviceKey.create(), EnrolmentClient(peer)
        token = office.token(device_id="camera").text
        try:
            nonce, request = await client.begin(), key.request()
            proof = key.proof(nonce, request)
            device_id, issued = await client.enrol(token, nonce, "", request, proof)
            assert device_id == "camera"
            assert issued.authority == b"whom all believe"
            assert issued.lifetime_seconds == 86400.0
            with pytest.raises(TooLate):
                await client.enrol(token, nonce, "", request, proof)
            fresh = await client.begin()
            proof = key.proof(fresh, request)
            with pytest.raises(NotAllowed):
                await client.enrol("hfmds_enrol_nonsense", fresh, "", request, proof)
        finally:
            await client.close()


async def test_renewal_needs_a_certificate(tmp_path: Path) -> None:
    async with talk(tmp_path, Gate()) as (peer, _bench, _office):
        with pytest.raises(WrongState, match="TLS"):
            await RenewalClient(peer, "camera").renew(DeviceKey.create().request())


async def test_a_device_that_renews_in_a_loop_must_wait(tmp_path: Path) -> None:
    office = Office(tmp_path, issuer=new_issuer())
    servicer, key = RenewalServicer(office.enrolment), DeviceKey.create()
    issued = office.enrol(key, office.token(), "camera")
    shown = certificate(issued)
    remember(Caller(shown.identity, shown))
    request = enrolment_pb2.RenewCertificateRequest(device_id="camera", csr=key.request())

    async def renew_in_a_loop() -> None:
        while True:
            assert (await servicer.RenewCertificate(request, None)).certificate.chain

    with pytest.raises(Unavailable, match="camera") as refusal:
        await renew_in_a_loop()
    assert refusal.value.retry_after_seconds


@asynccontextmanager
async def token_port(folder: Path, office: Office) -> AsyncIterator[Callable[[Token], FleetClient]]:
    """Serve the fleet's records to callers with tokens; yield a factory of clients."""
    books = office.fleet, office.members, office.tokens
    revocations = RevocationSync(*books, Gate(), NoStore())
    server = GrpcServer(
        "127.0.0.1:0",
        RpcMetrics("books", CollectorRegistry()),
        tls=FleetCertificates.create(folder).of(Identity(Kind.SERVICE, "tester")),
        holder=office.tokens.holder,
        gate=revocations.token_gate,
        supervised=False,
    )
    parts = office.tokens, office.members, office.issuer, revocations, NoDevices()
    FleetServicer(*parts).add_to(server)
    clients: list[FleetClient] = []

    def client_of(token: Token) -> FleetClient:
        shown = Bearer(Trust(folder / "service-tester.ca"), token.text)
        peer = Peer("coordinator", server.address, "HFMDS_COORDINATOR", shown)
        clients.append(FleetClient(peer))
        return clients[-1]

    async with server.serving(Shutdown(0)):
        try:
            yield client_of
        finally:
            for client in clients:
                await client.close()


@pytest.fixture
def office(tmp_path: Path) -> Office:
    registry = Office(tmp_path, issuer=new_issuer())
    registry.now = time.time()  # gates judge tokens by the real time
    return registry


async def test_revoking_the_token_in_use_is_confirmed(tmp_path: Path, office: Office) -> None:
    token = office.admin(Role.OWNER, "olga")

    async with token_port(tmp_path, office) as client_of:
        olga = client_of(token)
        await olga.revoke_token(token.token_id)
        with pytest.raises(NotAllowed):
            await olga.list_tokens()


async def test_operators_revoke_device_tokens_and_owners_revoke_all(
    tmp_path: Path, office: Office
) -> None:
    viewer, operator, owner = (office.admin(role) for role in Role)
    enrolling = office.token()

    async with token_port(tmp_path, office) as client_of:
        with pytest.raises(NotAllowed, match="may not call RevokeToken"):
            await client_of(viewer).revoke_token(enrolling.token_id)
        await client_of(operator).revoke_token(enrolling.token_id)
        with pytest.raises(NotAllowed, match="only an owner may end it"):
            await client_of(operator).revoke_token(viewer.token_id)
        await client_of(owner).revoke_token(viewer.token_id)
        remaining = {token.token_id for token in await client_of(owner).list_tokens()}
        assert remaining == {operator.token_id, owner.token_id}


# --- settings -----------------------------------------------------------------------------------

TLS = ("--tls-certificate=a", "--tls-key=b", "--tls-authority=c")


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--token-listen=127.0.0.1:0",), "over TLS only"),
        (("--issuer-certificate=x", "--issuer-key=y"), "over TLS only"),
        ((*TLS, "--issuer-certificate=x"), "belong together"),
        ((*TLS, "--certificate-seconds=0"), "above 0"),
    ],
)
def test_unsafe_settings_are_refused(flags: tuple[str, ...], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        load_settings(CoordinatorSettings, flags)


def test_compatible_settings_are_accepted() -> None:
    flags = (*TLS, "--token-listen=0.0.0.0:7404", "--issuer-certificate=x", "--issuer-key=y")
    assert load_settings(CoordinatorSettings, flags).token_listen == "0.0.0.0:7404"
