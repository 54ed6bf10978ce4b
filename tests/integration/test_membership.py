"""A fleet whose devices enrol by token, are quarantined or revoked, and enrol again."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiohttp
import pytest
from typer.testing import CliRunner

from hfmds.cli.app import app
from hfmds.domain.devices import DeviceProfile
from hfmds.domain.tasks import RetryLater
from hfmds.errors import (
    ConfigurationError,
    HfmdsError,
    NotAllowed,
    NotFound,
    TooLate,
    WrongState,
)
from hfmds.pki.device_key import DeviceKey
from hfmds.service.client.peer import Peer
from hfmds.service.security.certificates import read_own_certificate
from hfmds.service.security.tls import TlsFiles, Trust
from hfmds.wire.clients.coordinator_client import CoordinatorClient
from hfmds.wire.clients.enrolment_client import EnrolmentClient, IssuedCertificate, RenewalClient
from hfmds.wire.clients.store_client import StoreClient
from tests.support.programs import Program, Programs
from tests.support.server_processes import free_address
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

PROFILE = DeviceProfile(1, "1", "torch")


class Fleet:
    """Two servers with the certificates of `hfmds pki init`, and commands of admins."""

    def __init__(self, folder: Path, programs: Programs) -> None:
        self._pki = folder / "pki"
        self._programs = programs
        self._command({}, "pki", "init", "--folder", str(self._pki), "--host", "127.0.0.1")
        self.store = self._start("synthesis_store", "synthesis-store", free_address())
        self.coordinator = self._start(
            "coordinator",
            "coordinator",
            "127.0.0.1:0",
            store=self.store.address("grpc"),
            token_listen="127.0.0.1:0",
            web_listen="127.0.0.1:0",
            issuer_certificate=str(self._pki / "device-issuer.crt"),
            issuer_key=str(self._pki / "device-issuer.key"),
        )

    @property
    def authority(self) -> Path:
        return self._pki / "authority.crt"

    @property
    def owner(self) -> Path:
        return self._pki / "admin-owner-admin.crt"

    def as_owner(self, *arguments: str) -> str:
        """Return the output of a command of the owner."""
        return self.with_certificate(self.owner, *arguments)

    def with_certificate(self, certificate: Path, *arguments: str) -> str:
        """Return the output of a command with this certificate."""
        return self._command(
            {
                "HFMDS_COORDINATOR": self.coordinator.address("grpc"),
                "HFMDS_TLS_CERTIFICATE": str(certificate),
                "HFMDS_TLS_KEY": str(certificate.with_suffix(".key")),
                "HFMDS_TLS_AUTHORITY": str(self.authority),
            },
            *arguments,
        )

    def issue(self, kind: str, name: str) -> Path:
        """Issue a certificate."""
        output = self._command({}, "pki", "issue", kind, name, "--folder", str(self._pki))
        return Path(output.strip())

    def with_token(self, token: str, *arguments: str) -> str:
        """Return the output of a command with this token."""
        return self._command(
            {
                "HFMDS_COORDINATOR": self.coordinator.address("tokens"),
                "HFMDS_TOKEN": token,
                "HFMDS_TLS_AUTHORITY": str(self.authority),
            },
            *arguments,
        )

    def store_updates(self) -> float:
        """Return how often the coordinator has sent exclusions to the store."""
        url = f"http://{self.store.address('metrics')}/metrics"
        with urlopen(url) as answer:
            shown = answer.read().decode()
        answered = r'store_rpc_requests_total\{code="OK",method="SetExclusions".*\} (\S+)'
        (times,) = re.findall(answered, shown) or ["0"]
        return float(times)

    async def use_the_page(self, token: str) -> list[str]:
        """Use the web page with a session and with a token; return the other secrets."""
        trust = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=self.authority))
        jar, wrong = aiohttp.CookieJar(unsafe=True), f"{token[:-4]}0000"  # the host is a number
        async with aiohttp.ClientSession(
            self.coordinator.address("web"), connector=trust, cookie_jar=jar, raise_for_status=True
        ) as client:
            await client.post("/login", data={"token": wrong}, raise_for_status=False)
            await client.post("/login", data={"token": token})
            await client.get("/api/me")
            (cookie,) = [morsel.value for morsel in jar]
            await client.post("/logout")
            for shown in (token, wrong):
                headers = {"Authorization": f"Bearer {shown}"}
                await client.get("/api/me", headers=headers, raise_for_status=shown == token)
        return [cookie, wrong]

    async def require_waiting_check_in(self) -> None:
        """Raise NotFound unless a check-in waits."""
        url = f"http://{self.coordinator.address('metrics')}/metrics"
        shown = await asyncio.to_thread(lambda: urlopen(url).read().decode())
        in_flight = re.search(r'rpc_in_flight\{method="CheckIn".*\} 1\.0', shown)
        if not in_flight:
            raise NotFound("no check-in waits")

    def restart_store(self) -> None:
        """Kill and restart the store."""
        address = self.store.address("grpc")
        self.store.stop(signal.SIGKILL)
        self.store = self._start("synthesis_store", "synthesis-store", address)
        self.store.address("grpc")

    def _start(self, module: str, name: str, listen: str, **settings: str) -> Program:
        return self._programs.start(
            name,
            module,
            listen=listen,
            data_dir=str(self._pki / f"{name}-data"),
            tls_certificate=str(self._pki / f"service-{name}.crt"),
            tls_key=str(self._pki / f"service-{name}.key"),
            tls_authority=str(self.authority),
            log_level="debug",
            **settings,
        )

    def _command(self, environment: dict[str, str], *arguments: str) -> str:
        result = CliRunner(env=environment).invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout


class Device:
    """A device with its latest certificate."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self._fleet = fleet
        self._folder = folder
        self.key = DeviceKey.create()
        self.device_id = ""

    async def enrol(self, token: str, device_id: str = "") -> None:
        address = self._fleet.coordinator.address("tokens")
        peer = Peer("coordinator", address, "HFMDS_ENROL", Trust(self._fleet.authority))
        client = EnrolmentClient(peer)
        try:
            nonce, request = await client.begin(), self.key.request()
            proof = self.key.proof(nonce, request)
            assigned_id, issued = await client.enrol(token, nonce, device_id, request, proof)
        finally:
            await client.close()
        self.device_id = assigned_id
        self._keep(issued)

    async def renew(self) -> None:
        peer = self._peer(self._fleet.coordinator)
        self._keep(await RenewalClient(peer, self.device_id).renew(self.key.request()))

    async def check_in(self, wait_seconds: float = 0.0) -> Any:
        client = CoordinatorClient(self._peer(self._fleet.coordinator), self.device_id)
        try:
            return await client.check_in(PROFILE, wait_seconds)
        finally:
            await client.close()

    async def ask_store(self) -> None:
        """Ask for an unknown snapshot. The store answers NotFound to a device that it admits."""
        client = StoreClient(self._peer(self._fleet.store))
        try:
            await client.get_share("nothing")
        finally:
            await client.close()

    def _peer(self, program: Program) -> Peer:
        return Peer(program.name, program.address("grpc"), "HFMDS_LISTEN", self._files)

    def _keep(self, issued: IssuedCertificate) -> None:
        """Write each certificate to a new folder, so that open connections keep theirs."""
        folder = self._folder / ssl.PEM_cert_to_DER_cert(issued.chain.decode()).hex()[-16:]
        folder.mkdir(parents=True)
        self._files = TlsFiles(*(folder / name for name in ("crt", "key", "ca")))
        self._files.certificate.write_bytes(issued.chain)
        self._files.key.write_bytes(self.key.pem)
        self._files.authority.write_bytes(issued.authority)


Call = Callable[[], Awaitable[Any]]


def serial(certificate: Path) -> str:
    return read_own_certificate(certificate.read_bytes()).serial


async def require_refused(call: Call, error: type[HfmdsError]) -> None:
    with pytest.raises(error):
        await call()


async def wait_for_outcome(call: Call, expected: type[HfmdsError] | None) -> None:
    """Wait until a call ends as expected, because changes reach servers within seconds."""

    async def ends_as_expected() -> bool:
        try:
            await call()
        except HfmdsError as error:
            return expected is not None and isinstance(error, expected)
        return expected is None

    await eventually(ends_as_expected)


async def wait_for_revocation(fleet: Fleet, call: Call) -> None:
    """Wait until the store refuses a device, after at most two more calls of the coordinator."""
    before = await asyncio.to_thread(fleet.store_updates)

    async def is_refused() -> bool:
        calls = await asyncio.to_thread(fleet.store_updates) - before
        try:
            await call()
        except NotAllowed:
            return True
        except NotFound:
            # A call may be in progress. The next call asks for the version and sends the list.
            assert calls < 3
        return False

    await eventually(is_refused)


async def require_token_port_is_limited(fleet: Fleet) -> None:
    address = fleet.coordinator.address("tokens")
    stranger = Peer("coordinator", address, "HFMDS_ENROL", Trust(fleet.authority))
    client = CoordinatorClient(stranger, "camera")
    try:
        with pytest.raises(ConfigurationError, match="this call"):
            await client.check_in(PROFILE, 0.0)
    finally:
        await client.close()


async def test_devices_enrol_leave_and_return_by_tokens(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        fleet = Fleet(tmp_path, programs)
        camera, thief, phone, old = (Device(fleet, tmp_path / str(n)) for n in range(4))
        tokens: list[str] = []
        cookies: list[str] = []

        async def owner(*arguments: str) -> str:
            return await asyncio.to_thread(fleet.as_owner, *arguments)

        async def vera(*arguments: str) -> str:
            return await asyncio.to_thread(fleet.with_token, tokens[0], *arguments)

        async def new_token(*options: str) -> str:
            created = json.loads(await vera("pki", "enrol-token", "--json", *options))
            tokens.append(created["token"])
            return tokens[-1]

        async def enrol_by_tokens() -> None:
            tokens.append((await owner("pki", "admin-token", "operator", "vera")).strip())
            with pytest.raises(NotAllowed, match=r"operator vera .*CreateAdminToken"):
                await vera("pki", "admin-token", "owner", "vera")
            for_camera = await new_token("--device", "camera")
            for_phone = await new_token("--prefix", "phone-", "--uses", "2")
            with pytest.raises(NotAllowed):
                await asyncio.to_thread(fleet.with_token, for_camera, "pki", "devices")
            with pytest.raises(NotAllowed, match="fleet"):
                await thief.enrol(f"{for_camera[:-4]}0000")
            await camera.enrol(for_camera)
            with pytest.raises(NotAllowed, match="spent"):
                await thief.enrol(for_camera)
            await phone.enrol(for_phone)
            assert (camera.device_id, phone.device_id[:6]) == ("camera", "phone-")
            for device in (camera, phone):
                await device.renew()
                assert isinstance(await device.check_in(), RetryLater)
                await require_refused(device.ask_store, NotFound)
            await require_token_port_is_limited(fleet)
            cookies.extend(await fleet.use_the_page(tokens[0]))
            another = RenewalClient(phone._peer(fleet.coordinator), "camera")
            with pytest.raises(NotAllowed, match="device camera"):
                await another.renew(phone.key.request())

        async def revoke_the_camera() -> None:
            old.key, old.device_id, old._files = camera.key, "camera", camera._files
            waiting = asyncio.create_task(camera.check_in(60.0))
            await wait_for_outcome(fleet.require_waiting_check_in, None)
            await vera("pki", "revoke", "camera", "--reason", "lost")
            with pytest.raises(NotAllowed, match="device camera was revoked"):
                await waiting
            await wait_for_revocation(fleet, camera.ask_store)
            for call in (
                camera.renew,
                camera.check_in,
                lambda: camera.enrol(tokens[1]),
                lambda: camera.enrol("", "camera"),
            ):
                await require_refused(call, NotAllowed)
            await asyncio.to_thread(fleet.restart_store)
            await require_refused(camera.ask_store, NotAllowed)

        async def enrol_the_camera_again() -> None:
            camera.key = DeviceKey.create()
            await camera.enrol(await new_token("--device", "camera"))
            await wait_for_outcome(camera.check_in, None)
            await wait_for_outcome(camera.ask_store, NotFound)
            await require_refused(old.check_in, NotAllowed)
            await require_refused(old.ask_store, NotAllowed)

        async def quarantine_the_phone() -> None:
            await vera("pki", "quarantine", phone.device_id, "--reason", "noisy")
            await wait_for_outcome(phone.ask_store, TooLate)
            answer = await phone.check_in(60.0)
            assert answer == RetryLater(30.0, f"device {phone.device_id} is in quarantine: noisy")
            await phone.renew()
            await vera("pki", "release", phone.device_id)
            await wait_for_outcome(phone.ask_store, NotFound)
            assert "quarantine" not in (await phone.check_in()).reason

        async def revoke_admins() -> None:
            eve = await asyncio.to_thread(fleet.issue, "viewer", "eve")
            await asyncio.to_thread(fleet.with_certificate, eve, "devices")
            own = serial(fleet.owner)
            with pytest.raises(WrongState, match="another owner"):
                await owner("pki", "revoke", "--certificate", own)
            await owner("pki", "revoke", "--certificate", serial(eve), "--reason", "left")
            with pytest.raises(NotAllowed, match="was revoked"):
                await asyncio.to_thread(fleet.with_certificate, eve, "devices")
            await owner("pki", "revoke", "--token", tokens[0].split("_")[2])
            with pytest.raises(NotAllowed):
                await vera("devices")

        async def check_the_logs() -> None:
            events = json.loads(await owner("audit", "show-fleet", "--json"))
            kinds = [event["kind"] for event in events]
            assert kinds.count("device-enrolled") == 3
            assert {"device-revoked", "device-quarantined", "device-released"} <= set(kinds)
            assert "is sound" in await owner("audit", "verify-fleet")
            books = json.loads(await owner("pki", "devices", "--json"))
            assert [(book["device_id"], book["revoked"]) for book in books] == [
                ("camera", False),
                (phone.device_id, False),
            ]
            written = fleet.store.log.read_text() + fleet.coordinator.log.read_text()
            assert "call refused" in written
            assert "logged in" in written
            for secret in (*tokens, *cookies):
                assert secret[-43:] not in written

        await enrol_by_tokens()
        await revoke_the_camera()
        await enrol_the_camera_again()
        await quarantine_the_phone()
        await revoke_admins()
        await check_the_logs()
