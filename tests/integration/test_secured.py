"""A run of three programs with certificates, and refusals of other parties.

One of the devices has its certificate from a file, the other gets it by a token and renews it.
"""

from __future__ import annotations

import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from hfmds.data.packed import save_npz
from hfmds.data.sources import load_images
from hfmds.data.splits import label_skew
from hfmds.data.statistics import normalisation_of
from hfmds.domain.administration.fleet import AdminTerms, EnrolmentTerms, NewToken, Role
from hfmds.domain.devices import DeviceProfile
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec, Recipe, TrainingRecipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import RunSpec, RunState
from hfmds.errors import NotAllowed
from hfmds.pki.authority import KeyPair
from hfmds.pki.folder import create_authority, issue_pair
from hfmds.pki.token_text import TokenKind, new_token
from hfmds.service.client.peer import Peer
from hfmds.service.security.certificates import read_own_certificate
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.tls import TlsFiles
from hfmds.wire.clients.admin_client import AdminClient
from hfmds.wire.clients.coordinator_client import CoordinatorClient
from hfmds.wire.clients.fleet_client import FleetClient
from hfmds.wire.clients.store_client import StoreClient
from tests.support.fleet_certificates import chained
from tests.support.programs import Program, Programs
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

Result = TypeVar("Result")

SIZE = 16
DEVICES = ("camera", "phone")
ENROLS = "phone"
LOCAL = ("127.0.0.1",)


class Fleet:
    """The certificates of all parties, and the programs that use them."""

    def __init__(self, folder: Path, programs: Programs) -> None:
        self._folder = folder / "pki"
        self._now = datetime.now(UTC)
        self._authority = create_authority(self._folder, "tests", self._now, timedelta(days=2))
        self._programs = programs
        self.images = load_images(f"digits:{SIZE}#train")
        self.store = self._start("synthesis_store", Identity(Kind.SERVICE, "synthesis-store"))
        self.coordinator = self._start(
            "coordinator",
            Identity(Kind.SERVICE, "coordinator"),
            store=reached(self.store),
            web_listen="0.0.0.0:0",
            token_listen="127.0.0.1:0",
            issuer_certificate=str(self._folder / "device-issuer.crt"),
            issuer_key=str(self._folder / "device-issuer.key"),
            certificate_seconds="10",
        )

    def files(self, identity: Identity) -> TlsFiles:
        certificate = issue_pair(
            self._folder, self._authority, identity, self._now, timedelta(days=1), LOCAL
        )
        key = certificate.with_suffix(".key")
        return TlsFiles(certificate, key, self._folder / "authority.crt")

    def made_by_the_device_issuer(self, identity: Identity) -> TlsFiles:
        """Sign an identity with the device issuer's key, through an intermediate authority."""
        key = (self._folder / "device-issuer.key").read_bytes()
        issuer = KeyPair(key, (self._folder / "device-issuer.crt").read_bytes())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        stolen = chained(issuer, name, identity)
        files = TlsFiles(
            self._folder / "thief.crt", self._folder / "thief.key", self._folder / "authority.crt"
        )
        files.certificate.write_bytes(stolen.certificate)
        files.key.write_bytes(stolen.key)
        return files

    async def start_devices(self, owner: TlsFiles) -> dict[str, Program]:
        split = label_skew(self.images.labels, len(DEVICES), 2, seed=0, samples_per_device=12)
        devices = {}
        for device_id, part in zip(DEVICES, split, strict=True):
            data = self._folder / f"{device_id}.npz"
            save_npz(data, self.images.take(part))
            settings = {
                "device_id": device_id,
                "data": str(data),
                "engine": "torch",
                "state_dir": str(self._folder / device_id),
                "coordinator": reached(self.coordinator),
                "store": reached(self.store),
            }
            if device_id == ENROLS:
                token = self._folder / "token"
                token.write_text(await self._token(owner, device_id))
                devices[device_id] = self._programs.start(
                    device_id,
                    "edge_client",
                    enrol=self.coordinator.address("tokens"),
                    enrol_token_file=str(token),
                    tls_authority=str(self._folder / "authority.crt"),
                    **settings,
                )
            else:
                identity = Identity(Kind.DEVICE, device_id)
                devices[device_id] = self._start("edge_client", identity, **settings)
        return devices

    async def _token(self, owner: TlsFiles, device_id: str) -> str:
        """Create an enrolment token for the device."""
        token = new_token(TokenKind.ENROL)
        client = FleetClient(self.peer(self.coordinator, owner))
        terms = EnrolmentTerms(device_id=device_id)
        try:
            await client.create_token(
                NewToken(token.token_id, token.secret_sha256, device_id, 60.0, terms)
            )
        finally:
            await client.close()
        return token.text

    def peer(self, program: Program, files: TlsFiles) -> Peer:
        return Peer(program.name, reached(program), "HFMDS_LISTEN", files)

    def _start(self, module: str, identity: Identity, **settings: str) -> Program:
        files = self.files(identity)
        if identity.kind is Kind.SERVICE:
            settings["listen"] = "0.0.0.0:0"  # all addresses, with TLS only
            settings["data_dir"] = str(self._folder / identity.name)
        return self._programs.start(
            identity.name,
            module,
            tls_certificate=str(files.certificate),
            tls_key=str(files.key),
            tls_authority=str(files.authority),
            **settings,
        )


async def test_a_run_completes_with_certificates_on_every_connection(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        fleet = Fleet(tmp_path, programs)
        owner = fleet.files(Identity(Kind.OWNER, "olga"))
        devices = await fleet.start_devices(owner)
        viewer = fleet.files(Identity(Kind.VIEWER, "vera"))
        stranger = fleet.files(Identity(Kind.DEVICE, "stranger"))
        false_owner = fleet.made_by_the_device_issuer(Identity(Kind.OWNER, "x"))
        admin = AdminClient(fleet.peer(fleet.coordinator, owner))
        looker = AdminClient(fleet.peer(fleet.coordinator, viewer))
        # A device with a valid certificate claims another id.
        liar = CoordinatorClient(fleet.peer(fleet.coordinator, stranger), "camera")
        thief = StoreClient(fleet.peer(fleet.store, stranger))
        pretender = AdminClient(fleet.peer(fleet.coordinator, false_owner))
        try:
            await admin.create_run(run_spec(fleet), "secured")
            with pytest.raises(NotAllowed, match="CreateRun"):
                await looker.create_run(run_spec(fleet), "other")
            with pytest.raises(NotAllowed, match="camera"):
                await liar.check_in(DeviceProfile(1, "1", "torch"), 0)
            with pytest.raises(NotAllowed, match="ReleaseRun"):
                await thief.release_run("secured")
            with pytest.raises(NotAllowed):
                await pretender.list_runs()
            await eventually(lambda: ended(looker))
            await eventually(lambda: renewed(devices[ENROLS]))
            await require_page_is_for_admins(fleet, owner, viewer, stranger)
            _, events = await admin.list_events("secured")
        finally:
            for client in (admin, looker, liar, thief, pretender):
                await client.close()
        assert json.loads(events[0].details)["by"] == "admin/owner olga"
        messages = [record["message"] for record in devices[ENROLS].records()]
        assert "enrolled" in messages


async def require_page_is_for_admins(
    fleet: Fleet, owner: TlsFiles, viewer: TlsFiles, stranger: TlsFiles
) -> None:
    address = fleet.coordinator.address("web").replace("0.0.0.0", "127.0.0.1")

    async def status(own: TlsFiles | None = None, token: str = "") -> int:
        context = ssl.create_default_context(cafile=owner.authority)
        if own:
            context.load_cert_chain(own.certificate, own.key)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connector = aiohttp.TCPConnector(ssl=context)
        async with (
            aiohttp.ClientSession(address, connector=connector) as client,
            client.get("/api/runs/secured/gallery", headers=headers) as answer,
        ):
            return answer.status

    assert (await status(), await status(stranger), await status(viewer)) == (401, 403, 200)
    token = new_token(TokenKind.ADMIN)
    terms = AdminTerms(Role.VIEWER)
    people = FleetClient(fleet.peer(fleet.coordinator, owner))
    try:
        await people.create_token(
            NewToken(token.token_id, token.secret_sha256, "vera", 3600.0, terms)
        )
        assert await status(token=token.text) == 200
        await people.revoke_token(token.token_id)
        assert await status(token=token.text) == 401
        serial = read_own_certificate(viewer.certificate.read_bytes()).serial
        await people.revoke_certificate(serial)
        assert await status(viewer) == 403
    finally:
        await people.close()


def reached(program: Program) -> str:
    """Return the local address of a program that listens on all addresses."""
    return program.address("grpc").replace("0.0.0.0", "127.0.0.1")


def run_spec(fleet: Fleet) -> RunSpec:
    recipe = Recipe(
        model=ModelSpec(channels=1, height=SIZE, width=SIZE, classes=10),
        normalisation=normalisation_of(fleet.images),
        rounds=2,
        seed=0,
        training=TrainingRecipe(alpha=0.5),
        method=Hfmds(every_rounds=2, first_round=2, samples_per_device=2, steps=2),
    )
    return RunSpec(recipe, RoundPolicy(minimum_devices=2))


async def ended(client: AdminClient) -> bool:
    run = await client.get_run("secured")
    assert run.state in (RunState.RUNNING, RunState.COMPLETED), run.state_reason
    return run.state is RunState.COMPLETED


async def renewed(device: Program) -> bool:
    return any(record["message"] == "certificate renewed" for record in device.records())
