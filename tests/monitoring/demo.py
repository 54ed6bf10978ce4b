"""A small fleet of real programs with certificates, for Prometheus to scrape.

Two runs share three devices. One refreshes its pool in every round, limits leakage and lets
devices evaluate, and completes. The other run is asynchronous and never completes, so that a
run is always active.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hfmds.data.packed import save_npz
from hfmds.data.sources import load_images
from hfmds.data.splits import label_skew
from hfmds.data.statistics import normalisation_of
from hfmds.domain.methods import Hfmds
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.recipe import ModelSpec, Recipe, TrainingRecipe
from hfmds.domain.round_policy import Asynchronous, EvaluationByDevices, RoundPolicy
from hfmds.domain.runs import RunSpec, RunState
from hfmds.errors import NotFound
from hfmds.pki.folder import create_authority, issue_pair
from hfmds.service.client.peer import Peer
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.tls import TlsFiles
from hfmds.wire.clients.admin_client import AdminClient
from tests.support.programs import Program, Programs
from tests.support.waiting import eventually

COMPLETED, ENDLESS = "completed", "endless"
DEVICES = ("camera", "phone", "watch")
_SIZE = 16
_SECONDS = 240.0


class Demo:
    """Programs in a folder. `pods` maps the names of pods to their metrics addresses."""

    def __init__(self, folder: Path, programs: Programs) -> None:
        self._folder = folder / "pki"
        self._now = datetime.now(UTC)
        self._authority = create_authority(self._folder, "tests", self._now, timedelta(days=2))
        self._programs = programs
        self._images = load_images(f"digits:{_SIZE}#train")
        self._store = self._server("synthesis_store", "synthesis-store")
        held_out = folder / "held-out.npz"
        save_npz(held_out, load_images(f"digits:{_SIZE}#test").take(slice(0, 50)))
        self._coordinator = self._server(
            "coordinator", "coordinator", store=_reached(self._store), held_out=str(held_out)
        )
        devices = [self._device(*one) for one in zip(DEVICES, self._split(), strict=True)]
        self.pods = {
            "coordinator": [self._coordinator.address("metrics")],
            "synthesis-store": [self._store.address("metrics")],
            "edge-simulator": [device.address("metrics") for device in devices],
        }

    async def run(self) -> None:
        """Create both runs; return when the first is completed."""
        owner = self._files(Identity(Kind.OWNER, "olga"))
        peer = Peer("coordinator", _reached(self._coordinator), "HFMDS_LISTEN", owner)
        admin = AdminClient(peer)
        try:
            async with asyncio.timeout(_SECONDS):
                await admin.create_run(self._completed(), COMPLETED)
                await admin.create_run(self._endless(), ENDLESS)
                await eventually(lambda: _is_completed(admin))
                await _get_unknown_run(admin)
        finally:
            await admin.close()

    def _completed(self) -> RunSpec:
        limits = PoolPolicy(
            psnr_paired_max_db=60.0,
            psnr_nearest_max_db=60.0,
            ssim_nearest_max=0.99,
            halt_psnr_nearest_p99_db=80.0,
        )
        method = Hfmds(every_rounds=1, first_round=1, samples_per_device=4, steps=2)
        recipe = self._recipe(rounds=4, method=method, pool=limits)
        by_devices = EvaluationByDevices(every_rounds=1, devices=2)
        return RunSpec(recipe, RoundPolicy(minimum_devices=2, evaluation=by_devices))

    def _endless(self) -> RunSpec:
        recipe = self._recipe(rounds=100_000)
        return RunSpec(recipe, RoundPolicy(asynchronous=Asynchronous(buffer_size=2)))

    def _recipe(self, **settings: object) -> Recipe:
        return Recipe(
            model=ModelSpec(channels=1, height=_SIZE, width=_SIZE, classes=10),
            normalisation=normalisation_of(self._images),
            training=TrainingRecipe(alpha=0.5),
            **settings,  # type: ignore[arg-type]
        )

    def _split(self) -> list[Path]:
        parts = label_skew(self._images.labels, len(DEVICES), 2, seed=0, samples_per_device=12)
        files = [self._folder / f"{device_id}.npz" for device_id in DEVICES]
        for file, part in zip(files, parts, strict=True):
            save_npz(file, self._images.take(part))
        return files

    def _device(self, device_id: str, data: Path) -> Program:
        return self._start(
            "edge_client",
            Identity(Kind.DEVICE, device_id),
            device_id=device_id,
            data=str(data),
            engine="torch",
            state_dir=str(self._folder / device_id),
            coordinator=_reached(self._coordinator),
            store=_reached(self._store),
        )

    def _server(self, module: str, name: str, **settings: str) -> Program:
        data_dir = str(self._folder / name)
        identity = Identity(Kind.SERVICE, name)
        return self._start(module, identity, listen="127.0.0.1:0", data_dir=data_dir, **settings)

    def _start(self, module: str, identity: Identity, **settings: str) -> Program:
        files = self._files(identity)
        return self._programs.start(
            identity.name,
            module,
            tls_certificate=str(files.certificate),
            tls_key=str(files.key),
            tls_authority=str(files.authority),
            **settings,
        )

    def _files(self, identity: Identity) -> TlsFiles:
        day = timedelta(days=1)
        hosts = ("127.0.0.1",)
        certificate = issue_pair(self._folder, self._authority, identity, self._now, day, hosts)
        return TlsFiles(
            certificate, certificate.with_suffix(".key"), self._folder / "authority.crt"
        )


async def _get_unknown_run(admin: AdminClient) -> None:
    """Make a call that fails, for the metrics of errors."""
    try:
        await admin.get_run("unknown")
    except NotFound:
        return
    raise AssertionError("an unknown run exists")


def _reached(program: Program) -> str:
    return program.address("grpc")


async def _is_completed(admin: AdminClient) -> bool:
    run = await admin.get_run(COMPLETED)
    assert run.state in (RunState.RUNNING, RunState.COMPLETED), run.state_reason
    return run.state is RunState.COMPLETED
