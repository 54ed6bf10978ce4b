"""Which callers TLS admits, and which methods each kind may call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from coordinator.settings import CoordinatorSettings
from edge_client.settings import EdgeSettings
from hfmds.cli.app import app
from hfmds.errors import ConfigurationError, NotAllowed, Unavailable
from hfmds.pki.authority import Authority
from hfmds.service.client.channel import Peer, call, open_channel
from hfmds.service.process.settings import ServiceSettings, load_settings
from hfmds.service.security.access import ANYONE, DEVICE, OPERATOR, VIEWER, require_own
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.tls import TlsFiles
from hfmds.v1 import (
    coordinator_pb2,
    synthesis_store_pb2,
)
from tests.service.loopback import Stub, running
from tests.support.fleet_certificates import DAY, LOCAL, FleetCertificates

PROBE = {"Unary": OPERATOR, "Download": DEVICE, "Upload": DEVICE, "Abort": VIEWER, "Wait": ANYONE}


def new_authority() -> Authority:
    return Authority.create("tests", datetime.now(UTC), 10 * DAY)[0]


async def ask(
    server: TlsFiles, caller: TlsFiles | None, question: Callable[[Peer, Stub], Awaitable[Any]]
) -> Any:
    """Ask a server a question as a caller."""
    async with running(tls=server, access=PROBE) as it:
        peer = Peer("tester", it.server.address, "HFMDS_TESTER", caller)
        channel = open_channel(peer)
        try:
            return await question(peer, Stub(channel))
        finally:
            await channel.close()


async def unary(peer: Peer, stub: Stub) -> Any:
    return await call(peer, stub.unary, b"hello", timeout_seconds=20)


async def test_who_may_is_answered(fleet: FleetCertificates) -> None:
    server = fleet.of(Identity(Kind.SERVICE, "tester"))
    assert await ask(server, fleet.of(Identity(Kind.OPERATOR, "olga")), unary) == b"hello"
    assert await ask(server, fleet.of(Identity(Kind.OWNER, "otto")), unary) == b"hello"


async def test_who_may_not_is_told_for_whom_it_is(fleet: FleetCertificates) -> None:
    server = fleet.of(Identity(Kind.SERVICE, "tester"))
    for kind in (Kind.DEVICE, Kind.SERVICE, Kind.VIEWER):
        with pytest.raises(NotAllowed, match="for admin/operator, admin/owner"):
            await ask(server, fleet.of(Identity(kind, "mallory")), unary)


async def test_callers_without_a_good_certificate_do_not_get_in(fleet: FleetCertificates) -> None:
    server = fleet.of(Identity(Kind.SERVICE, "tester"))
    past = datetime.now(UTC) - 3 * DAY
    expired = fleet.of(Identity(Kind.OPERATOR, "expired"), now=past)
    stranger = new_authority().pair(Identity(Kind.OPERATOR, "olga"), datetime.now(UTC), DAY)
    for caller in (None, expired, fleet.files("stranger", stranger)):
        with pytest.raises(Unavailable):
            await ask(server, caller, unary)


async def test_a_server_that_is_not_who_it_should_be_is_not_called(
    fleet: FleetCertificates,
) -> None:
    caller = fleet.of(Identity(Kind.OPERATOR, "olga"))
    other = new_authority()
    pretender = other.pair(Identity(Kind.SERVICE, "tester"), datetime.now(UTC), DAY, LOCAL)
    for server in (
        fleet.of(Identity(Kind.SERVICE, "elsewhere"), hosts=("c.example",)),
        fleet.of(Identity(Kind.SERVICE, "expired"), now=datetime.now(UTC) - 3 * DAY),
        fleet.of(Identity(Kind.DEVICE, "device")),  # a device's certificate is not for serving
        fleet.files("pretender", pretender),
    ):
        with pytest.raises(Unavailable):
            await ask(server, caller, unary)


async def test_plain_calls_to_a_tls_server_fail_and_the_other_way_round(
    fleet: FleetCertificates,
) -> None:
    with pytest.raises(Unavailable):
        async with running() as it:
            caller = fleet.of(Identity(Kind.OPERATOR, "olga"))
            peer = Peer("tester", it.server.address, "HFMDS_TESTER", caller)
            channel = open_channel(peer)
            try:
                await unary(peer, Stub(channel))
            finally:
                await channel.close()


async def test_a_new_certificate_is_used_without_a_restart(fleet: FleetCertificates) -> None:
    server = fleet.of(Identity(Kind.SERVICE, "tester"))
    second = new_authority()

    async def rotate(peer: Peer, stub: Stub) -> tuple[bytes, bytes]:
        before = await unary(peer, stub)
        fleet.files(
            "service-tester",
            second.pair(Identity(Kind.SERVICE, "tester"), datetime.now(UTC), DAY, LOCAL),
            second.certificate,
        )
        mine = second.pair(Identity(Kind.OPERATOR, "olga"), datetime.now(UTC), DAY)
        caller = fleet.files("later", mine, second.certificate)
        later = Peer(peer.name, peer.address, peer.setting, caller)
        channel = open_channel(later)
        try:
            return before, await unary(later, Stub(channel))
        finally:
            await channel.close()

    assert await ask(server, fleet.of(Identity(Kind.OPERATOR, "olga")), rotate) == (
        b"hello",
        b"hello",
    )


async def test_files_that_are_broken_do_not_fill_the_log(
    fleet: FleetCertificates, caplog: pytest.LogCaptureFixture
) -> None:
    server = fleet.of(Identity(Kind.SERVICE, "tester"))

    async def connect_again_and_again(peer: Peer, stub: Stub) -> list[bytes]:
        server.key.write_text("half a key")
        answers = []
        for _ in range(3):
            channel = grpc.aio.secure_channel(
                peer.address,
                peer.tls.channel_credentials(),  # type: ignore[union-attr]
                options=[("grpc.use_local_subchannel_pool", 1)],  # a connection of its own
            )
            answers.append(await unary(peer, Stub(channel)))
            await channel.close()
        return answers

    answers = await ask(server, fleet.of(Identity(Kind.OPERATOR, "olga")), connect_again_and_again)
    assert answers == [b"hello"] * 3  # by the certificate that it had
    assert caplog.text.count("cannot read the TLS files again") == 1


async def test_health_is_told_to_every_party(fleet: FleetCertificates) -> None:
    async def health(peer: Peer, stub: Stub) -> Any:
        files = peer.tls
        assert files is not None
        credentials = files.channel_credentials()
        async with grpc.aio.secure_channel(peer.address, credentials) as channel:
            return await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")

    assert await ask(
        fleet.of(Identity(Kind.SERVICE, "tester")), fleet.of(Identity(Kind.DEVICE, "a")), health
    )


@pytest.mark.parametrize("wrong", ["certificate", "key", "authority"])
def test_files_that_cannot_be_used_are_named(fleet: FleetCertificates, wrong: str) -> None:
    files = fleet.of(Identity(Kind.SERVICE, "tester"))
    getattr(files, wrong).write_text("not PEM")
    with pytest.raises(ConfigurationError, match="HFMDS_TLS_CERTIFICATE"):
        files.read()
    getattr(files, wrong).unlink()
    with pytest.raises(ConfigurationError, match="No such file"):
        files.read()


# --- whom a device speaks for -------------------------------------------------------------------


def test_a_device_speaks_for_itself_only() -> None:
    camera = Identity(Kind.DEVICE, "camera")
    require_own(camera, coordinator_pb2.CheckInRequest(device_id="camera"))
    with pytest.raises(NotAllowed, match=r"camera .*device phone"):
        require_own(camera, coordinator_pb2.CheckInRequest(device_id="phone"))
    with pytest.raises(NotAllowed):
        require_own(camera, coordinator_pb2.CheckInRequest())


def test_an_upload_is_its_devices_from_the_header_on() -> None:
    camera = Identity(Kind.DEVICE, "camera")
    for message in (synthesis_store_pb2.PutBatchRequest, coordinator_pb2.SubmitUpdateRequest):
        own, others = message(data=b"chunk"), message(data=b"chunk")
        require_own(camera, own)
        own.header.device_id, others.header.device_id = "camera", "phone"
        require_own(camera, own)
        with pytest.raises(NotAllowed):
            require_own(camera, others)


def test_people_may_name_devices() -> None:
    require_own(Identity(Kind.OWNER, "olga"), SimpleNamespace(device_id="camera"))


# --- settings -----------------------------------------------------------------------------------


def test_other_machines_are_served_with_tls_only_unless_told_otherwise() -> None:
    with pytest.raises(ConfigurationError, match=r"0\.0\.0\.0:7401.*HFMDS_INSECURE=true"):
        load_settings(CoordinatorSettings, ["--listen", "0.0.0.0:7401"])
    for arguments in (
        ["--listen", "0.0.0.0:7401", "--insecure"],
        ["--listen", "[::1]:7401"],
        ["--listen=0.0.0.0:1", "--tls-certificate=c", "--tls-key=k", "--tls-authority=a"],
    ):
        load_settings(CoordinatorSettings, arguments)


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        (CoordinatorSettings, ["--store", "store.example:7411"]),
        (EdgeSettings, ["--data=d", "--coordinator", "10.0.0.1:7401,10.0.0.2:7401"]),
        (EdgeSettings, ["--data=d", "--store", "[2001:db8::1]:7411"]),
    ],
)
def test_other_machines_are_called_with_tls_only_unless_told_otherwise(
    program: type[ServiceSettings], flags: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(program, flags)
    assert f"is {flags[-1]}, another machine, and there is no TLS" in str(refusal.value)
    assert "HFMDS_INSECURE=true" in str(refusal.value)
    for more in (["--insecure"], ["--tls-certificate=c", "--tls-key=k", "--tls-authority=a"]):
        load_settings(program, [*flags, *more])


def test_a_device_that_enrols_may_call_other_machines() -> None:
    flags = ["--data=d", "--coordinator=c.example:1", "--store=s.example:2"]
    enrolling = ["--enrol=c.example:3", "--tls-authority=a", "--enrol-token=t"]
    load_settings(EdgeSettings, [*flags, *enrolling])
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(EdgeSettings, flags)
    assert len(str(refusal.value).splitlines()) == 2  # one for each


@pytest.mark.parametrize("command", [["status"], ["snapshots", "list"], ["pki", "devices"]])
def test_commands_call_other_machines_with_tls_only_unless_told_otherwise(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting in ("HFMDS_COORDINATOR", "HFMDS_STORE"):
        monkeypatch.setenv(setting, "192.0.2.1:1")
    with pytest.raises(ConfigurationError, match=r"is 192\.0\.2\.1:1, another machine, and"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_tls_is_whole_or_not_there() -> None:
    with pytest.raises(ConfigurationError, match="belong together"):
        load_settings(CoordinatorSettings, ["--tls-certificate", "c"])
