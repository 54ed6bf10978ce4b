"""Devices with only a token: they enrol, work, renew, are revoked and enrol again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hfmds.data.sources import load_images
from hfmds.data.statistics import normalisation_of
from hfmds.domain.administration.fleet import EnrolmentTerms, Member, NewToken
from hfmds.domain.methods import FedAvg
from hfmds.domain.recipe import ModelSpec, Recipe, TrainingRecipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import RunSpec, RunState
from hfmds.pki.folder import create_authority, issue_pair
from hfmds.pki.token_text import TokenKind, new_token
from hfmds.service.client.peer import Peer
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.tls import TlsFiles
from hfmds.wire.clients.admin_client import AdminClient
from hfmds.wire.clients.fleet_client import FleetClient
from tests.support.programs import Program, Programs
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

SIZE = 16
DAY = timedelta(days=1)
# Short enough for renewals during the test.
CERTIFICATE_SECONDS = "9"


class Stage:
    """Both services, an operator, and devices with a state folder and no certificate."""

    def __init__(self, folder: Path, programs: Programs) -> None:
        self.pki = folder / "pki"
        self._folder = folder
        self._programs = programs
        self._now = datetime.now(UTC)
        self._authority = create_authority(self.pki, "tests", self._now, DAY)
        self.store = self._start_service("synthesis_store", "synthesis-store")
        self.coordinator = self._start_service(
            "coordinator",
            "coordinator",
            store=self.store.address("grpc"),
            token_listen="127.0.0.1:0",
            issuer_certificate=str(self.pki / "device-issuer.crt"),
            issuer_key=str(self.pki / "device-issuer.key"),
            certificate_seconds=CERTIFICATE_SECONDS,
        )
        operator = self._files(Identity(Kind.OPERATOR, "olga"))
        self.peer = Peer("coordinator", self.coordinator.address("grpc"), "", operator)

    def start_device(self, device_id: str, token: str) -> Program:
        return self._programs.start(
            device_id,
            "edge_client",
            device_id=device_id,
            enrol=self.coordinator.address("tokens"),
            enrol_token=token,
            tls_authority=str(self.pki / "authority.crt"),
            state_dir=str(self._folder / f"state-{device_id}"),
            coordinator=self.coordinator.address("grpc"),
            store=self.store.address("grpc"),
            data=f"digits:{SIZE}#train@{device_id[-1]}/10",
            engine="torch",
            wait_seconds="1",
            retry_max_seconds="1",
            log_level="debug",
        )

    def _start_service(self, module: str, name: str, **settings: str) -> Program:
        files = self._files(Identity(Kind.SERVICE, name))
        return self._programs.start(
            name,
            module,
            listen="127.0.0.1:0",
            data_dir=str(self._folder / name),
            tls_certificate=str(files.certificate),
            tls_key=str(files.key),
            tls_authority=str(files.authority),
            log_level="debug",
            **settings,
        )

    def _files(self, identity: Identity) -> TlsFiles:
        certificate = issue_pair(
            self.pki, self._authority, identity, self._now, DAY, ("127.0.0.1",)
        )
        return TlsFiles(certificate, certificate.with_suffix(".key"), self.pki / "authority.crt")


async def test_an_enrolled_device_trains_renews_and_is_revoked(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        stage = Stage(tmp_path, programs)
        await life(stage)
        secrets = [*keys_below(tmp_path), "hfmds_enrol_"]
        assert len(secrets) >= 8  # both authorities, both services, the operator and devices
        for log in tmp_path.glob("*.log"):
            text = log.read_text()
            assert not [secret for secret in secrets if secret in text], f"{log.name} has secrets"


def keys_below(folder: Path) -> set[str]:
    """Return the unique lines of all private key files in a folder."""
    key_texts = [path.read_text() for end in ("*.key", "*key.pem") for path in folder.rglob(end)]
    return {text.splitlines()[2] for text in key_texts if "PRIVATE KEY" in text}


async def life(stage: Stage) -> None:
    fleet, admin = FleetClient(stage.peer), AdminClient(stage.peer)
    try:
        token = await new_enrol_token(fleet, EnrolmentTerms(uses=2, prefix="cam-"))
        devices = [stage.start_device(f"cam-{i}", token) for i in range(2)]
        await admin.create_run(run_spec(), "enrolled")
        await eventually(lambda: completed(admin))
        await renewals(fleet)

        await fleet.quarantine("cam-1", "its clock is strange")
        await eventually(lambda: says(devices[1], "in quarantine: its clock is strange"))
        await fleet.release("cam-1")

        await fleet.revoke_device("cam-0", "stolen")
        await eventually(lambda: ended(devices[0]))
        assert devices[0].process.returncode != 0
        assert await says(devices[0], "device cam-0 was revoked")

        # Its old credentials are worthless. A later token for its id enrols it again.
        again = stage.start_device("cam-0", token)
        await eventually(lambda: ended(again))
        assert again.process.returncode != 0
        later = await new_enrol_token(fleet, EnrolmentTerms(device_id="cam-0"))
        log_bytes = devices[0].log.stat().st_size
        back = stage.start_device("cam-0", later)
        await eventually(lambda: says(back, "waiting for work", log_bytes))
        assert not (await member(fleet, "cam-0")).revoked
        assert devices[1].process.poll() is None
    finally:
        await fleet.close()
        await admin.close()


async def new_enrol_token(fleet: FleetClient, terms: EnrolmentTerms) -> str:
    token = new_token(TokenKind.ENROL)
    await fleet.create_token(NewToken(token.token_id, token.secret_sha256, "cams", 3600.0, terms))
    return token.text


async def renewals(fleet: FleetClient) -> None:
    """Wait until each device has a new certificate."""
    before = {entry.device_id: entry.serial for entry in await fleet.list_members()}

    async def all_new() -> bool:
        return all(entry.serial != before[entry.device_id] for entry in await fleet.list_members())

    await eventually(all_new)


async def member(fleet: FleetClient, device_id: str) -> Member:
    return next(entry for entry in await fleet.list_members() if entry.device_id == device_id)


async def completed(admin: AdminClient) -> bool:
    run = await admin.get_run("enrolled")
    assert run.state in (RunState.RUNNING, RunState.COMPLETED), run.state_reason
    return run.state is RunState.COMPLETED


async def ended(program: Program) -> bool:
    return program.process.poll() is not None


async def says(program: Program, text: str, since: int = 0) -> bool:
    return text in program.log.read_bytes()[since:].decode()


def run_spec() -> RunSpec:
    recipe = Recipe(
        model=ModelSpec(channels=1, height=SIZE, width=SIZE, classes=10),
        normalisation=normalisation_of(load_images(f"digits:{SIZE}#train")),
        rounds=2,
        seed=0,
        training=TrainingRecipe(),
        method=FedAvg(),
    )
    return RunSpec(recipe, RoundPolicy(minimum_devices=2))
