"""`hfmds pki`: tokens and members, served by the real classes of the coordinator."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from coordinator.api.fleet_service import FleetServicer
from coordinator.identity.revocation_sync import RevocationSync
from hfmds.cli.app import app
from hfmds.cli.connections import ask_store
from hfmds.cli.settings import CommandSettings
from hfmds.errors import ConfigurationError, InvalidInput, NotFound, WrongState
from hfmds.pki.device_key import DeviceKey
from hfmds.pki.token_text import TokenKind, parse_token
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.process.settings import load_settings
from hfmds.service.security.exclusions import Exclusions
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.security.tls import Bearer, Trust
from hfmds.service.server.server import GrpcServer
from tests.coordinator.identity.registry_office import Office, certificate, new_issuer


class Coordinator:
    """Serve the fleet's records in a thread, because the command runs its own event loop."""

    def __init__(self, folder: Path, *, with_issuer: bool = True) -> None:
        self.office = Office(folder, issuer=new_issuer() if with_issuer else None)
        self.gate = Gate()
        self.dismissed: list[str] = []
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.address = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(0), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def set_exclusions(self, version: str, exclusions: Exclusions | None = None) -> str:
        return version

    async def _start(self) -> str:
        office = self.office
        books = office.fleet, office.members, office.tokens
        revocations = RevocationSync(*books, self.gate, self)
        self._server = GrpcServer("127.0.0.1:0", RpcMetrics("books", CollectorRegistry()))
        parts = office.tokens, office.members, office.issuer, revocations, self
        FleetServicer(*parts).add_to(self._server)
        await self._server.start()
        return self._server.address

    async def leave(self, device_id: str) -> None:
        self.dismissed.append(device_id)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    it = Coordinator(tmp_path)
    yield it
    it.stop()


def pki(coordinator: Coordinator, *arguments: str) -> str:
    environment = {"HFMDS_COORDINATOR": coordinator.address, "COLUMNS": "160"}
    runner = CliRunner(env=environment)
    result = runner.invoke(app, ["pki", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_created_token_enrols_a_device(coordinator: Coordinator) -> None:
    token = parse_token(
        pki(coordinator, "enrol-token", "--device", "camera").strip(), TokenKind.ENROL
    )
    assert token is not None
    assert coordinator.office.enrol(DeviceKey.create(), token).device_id == "camera"
    created = json.loads(pki(coordinator, "enrol-token", "--prefix", "p-", "--uses", "7", "--json"))
    assert created["record"]["terms"] == {"uses": 7, "device_id": "", "prefix": "p-", "used": 0}
    assert parse_token(created["token"], TokenKind.ENROL) is not None


def test_a_created_token_admits_a_person(coordinator: Coordinator) -> None:
    token = pki(coordinator, "admin-token", "operator", "vera", "--days", "7").strip()
    assert coordinator.office.tokens.admin(token) == Identity(Kind.OPERATOR, "vera")
    shown = pki(coordinator, "tokens")
    assert "a person, as operator" in shown
    assert token not in shown
    assert token.split("_")[2] in shown


def test_tokens_are_listed_and_revoked(coordinator: Coordinator) -> None:
    assert "no tokens" in pki(coordinator, "tokens")
    pki(coordinator, "enrol-token", "--prefix", "cam-", "--uses", "3", "--name", "north")
    (token,) = json.loads(pki(coordinator, "tokens", "--json"))
    assert (token["name"], token["terms"]["uses"]) == ("north", 3)
    assert "devices cam-*" in pki(coordinator, "tokens")
    pki(coordinator, "revoke", "--token", token["token_id"])
    assert json.loads(pki(coordinator, "tokens", "--json")) == []
    with pytest.raises(NotFound):
        pki(coordinator, "revoke", "--token", "0" * 12)
    token_text = pki(coordinator, "enrol-token").strip()
    output = pki(coordinator, "revoke", "--token", token_text)
    assert token_text.split("_")[2] in output
    assert token_text.split("_")[3] not in output
    with pytest.raises(InvalidInput, match=r"12 .*hex") as refusal:
        pki(coordinator, "revoke", "--token", token_text[:-1])
    assert token_text[-64:-40] not in str(refusal.value)


def test_a_device_is_revoked_and_its_standing_shown(coordinator: Coordinator) -> None:
    assert "no device has enrolled" in pki(coordinator, "devices")
    office = coordinator.office
    issued = office.enrol(DeviceKey.create(), office.token(device_id="camera"))
    assert "member" in pki(coordinator, "devices")
    assert certificate(issued).serial in pki(coordinator, "devices")
    output = pki(coordinator, "revoke", "camera", "--reason", "lost")
    assert "hfmds pki enrol-token --device camera" in output
    assert "is that its id" not in output
    assert coordinator.gate.exclusions.dead_until.keys() == {"camera"}
    assert coordinator.dismissed == ["camera"]
    shown = pki(coordinator, "devices")
    assert "revoked" in shown
    assert "lost" in shown


def test_a_serial_number_is_accepted_in_every_notation(coordinator: Coordinator) -> None:
    pki(coordinator, "revoke", "--certificate", "00:AB:12")
    assert coordinator.gate.exclusions.serials == {"ab12"}
    with pytest.raises(InvalidInput, match="not a serial number"):
        pki(coordinator, "revoke", "--certificate", "camera")


def test_a_quarantine_begins_and_ends(coordinator: Coordinator) -> None:
    output = pki(coordinator, "quarantine", "phone", "--reason", "noisy")
    assert "no device phone has ever enrolled or checked in: check the id" in output
    assert coordinator.gate.exclusions.quarantined == {"phone": "noisy"}
    assert "quarantine" in pki(coordinator, "devices")
    pki(coordinator, "release", "phone")
    assert coordinator.gate.exclusions == Exclusions()


def test_revoking_needs_exactly_one_target(coordinator: Coordinator) -> None:
    for arguments in ((), ("camera", "--token", "0" * 12)):
        with pytest.raises(InvalidInput, match="--certificate"):
            pki(coordinator, "revoke", *arguments)


def test_creating_device_tokens_needs_an_issuer(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path, with_issuer=False)
    try:
        with pytest.raises(WrongState, match="HFMDS_ISSUER_CERTIFICATE"):
            pki(coordinator, "enrol-token")
    finally:
        coordinator.stop()


# --- credentials of commands ----------------------------------------------------------------------


def settings(monkeypatch: pytest.MonkeyPatch, **given: object) -> CommandSettings:
    for name, value in given.items():
        monkeypatch.setenv(f"HFMDS_{name.upper()}", str(value))
    return load_settings(CommandSettings)


def test_a_token_replaces_a_certificate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, authority = tmp_path / "token", tmp_path / "authority.crt"
    file.write_text("secret\n")
    token_settings = settings(monkeypatch, token_file=file, tls_authority=authority).credentials
    assert token_settings == Bearer(Trust(authority), "secret")
    assert "secret" not in repr(token_settings)
    with pytest.raises(ConfigurationError, match="not both"):
        settings(monkeypatch, token="another")
    monkeypatch.delenv("HFMDS_TOKEN_FILE")
    assert settings(monkeypatch).credentials == Bearer(Trust(authority), "another")
    with pytest.raises(ConfigurationError, match="takes no tokens"):
        ask_store("127.0.0.1:1", lambda client: client.list_events())


def test_contradictory_settings_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="set HFMDS_TLS_AUTHORITY"):
        settings(monkeypatch, token="secret")
    with pytest.raises(ConfigurationError, match="HFMDS_TLS_AUTHORITY"):
        settings(monkeypatch, tls_certificate="a", tls_key="b", tls_authority="c")
    for name in ("tls_certificate", "tls_key", "token"):
        monkeypatch.delenv(f"HFMDS_{name.upper()}")
    token_settings = settings(monkeypatch, token_file=tmp_path / "missing")
    with pytest.raises(ConfigurationError, match="HFMDS_TOKEN_FILE"):
        _ = token_settings.credentials
