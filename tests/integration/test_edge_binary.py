"""The edge client as one file: its build, its contents, and its work without Python."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PyInstaller.archive.readers import CArchiveReader

from hfmds.algorithm.federation import federate
from hfmds.algorithm.methods.method_registry import first_checkpoint
from hfmds.algorithm.simulation.local_fleet import LocalFleet
from hfmds.data.packed import save_npz
from hfmds.data.sources import load_images
from hfmds.data.splits import label_skew
from hfmds.data.statistics import normalisation_of
from hfmds.domain.learning import LabelledImages, Weights
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec, Recipe, TrainingRecipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import Round, RunSpec, RunState
from hfmds.service.client.peer import Peer
from hfmds.wire.clients.admin_client import AdminClient
from hfmds.wire.tensors import StoredWeights
from tests.support.programs import Programs

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
]  # building and making a plan take long

REPOSITORY = Path(__file__).resolve().parents[2]
MOST_BYTES = 120_000_000
DEVICES = ("binary", "torch")


@pytest.fixture(scope="module")
def binary(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build like `make edge-binary`, with a cache for unchanged parts."""
    assert pytestconfig.cache is not None
    folder = tmp_path_factory.mktemp("dist")
    command = ["-m", "PyInstaller", "--noconfirm", "--log-level=WARN"]
    places = [f"--distpath={folder}", f"--workpath={pytestconfig.cache.mkdir('edge-binary')}"]
    spec = str(REPOSITORY / "packaging" / "edge_client.spec")
    subprocess.run([sys.executable, *command, *places, spec], check=True, cwd=REPOSITORY)
    return folder / "hfmds-edge-client"


def test_the_binary_is_small_and_contains_no_server_packages(binary: Path) -> None:
    archive = CArchiveReader(str(binary))
    modules = {*archive.toc, *archive.open_embedded_archive("PYZ.pyz").toc}
    packages = {name.partition(".")[0].partition("/")[0] for name in modules}
    assert {"edge_client", "hfmds", "numpy", "onnxruntime"} <= packages
    unwanted = {"alembic", "coordinator", "onnx", "scipy", "sklearn", "sqlalchemy", "torch"}
    assert not packages & {*unwanted, "opentelemetry"}
    assert binary.stat().st_size <= MOST_BYTES


def test_the_binary_names_a_missing_setting(binary: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [binary], env={}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 2
    assert "HFMDS_DATA (--data) is not set" in result.stderr


@contextmanager
def at_work(binary: Path, folder: Path, **settings: str) -> Iterator[Path]:
    """Run the binary with only its settings in the environment; return its log."""
    log = folder / "binary.log"
    environment = {f"HFMDS_{name.upper()}": value for name, value in settings.items()}
    with log.open("wb") as written:
        process = subprocess.Popen(
            [binary],
            env={"PATH": "/nowhere", "HOME": "/nowhere", "TMPDIR": str(folder), **environment},
            cwd=folder,
            stdout=written,
            stderr=written,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(30)


def experiment() -> tuple[Recipe, dict[str, LabelledImages]]:
    images = load_images("digits:16#train")
    split = label_skew(images.labels, len(DEVICES), 2, seed=0, samples_per_device=20)
    recipe = Recipe(
        model=ModelSpec(channels=1, height=16, width=16, classes=10),
        normalisation=normalisation_of(images),
        rounds=3,
        seed=7,
        training=TrainingRecipe(local_epochs=2, alpha=0.5),
        method=Hfmds(every_rounds=2, first_round=2, samples_per_device=6, steps=8),
    )
    shards = {name: images.take(part) for name, part in zip(DEVICES, split, strict=True)}
    return recipe, shards


async def test_the_binary_gives_the_weights_of_a_simulation(
    binary: Path, plans_dir: Path, tmp_path: Path
) -> None:
    recipe, shards = experiment()
    for name, shard in shards.items():
        save_npz(tmp_path / f"{name}.npz", shard)
    model = tmp_path / "model.safetensors"

    async def learned(coordinator: str) -> tuple[Round, ...]:
        async with AsyncExitStack() as stack, asyncio.timeout(600):
            client = AdminClient(Peer("coordinator", coordinator, "HFMDS_COORDINATOR"))
            stack.push_async_callback(client.close)
            policy = RoundPolicy(minimum_devices=2, lease_seconds=5.0)
            await client.create_run(RunSpec(recipe, policy), "run")
            async for _ in client.watch_run("run"):
                pass
            run = await client.get_run("run")
            assert run.state is RunState.COMPLETED, run.state_reason
            chunks = [chunk async for chunk in client.download_model("run", recipe.rounds)]
            model.write_bytes(b"".join(chunks))
            return await client.list_rounds("run")

    with Programs(tmp_path) as programs:
        store = programs.store().address("grpc")
        coordinator = programs.coordinator(store, plans_dir=plans_dir).address("grpc")
        programs.device("torch", tmp_path / "torch.npz", coordinator, store)
        with at_work(
            binary,
            tmp_path,
            device_id="binary",
            data=str(tmp_path / "binary.npz"),
            coordinator=coordinator,
            store=store,
            state_dir=str(tmp_path / "state"),
            metrics_listen="127.0.0.1:0",
        ) as log:
            rounds = await learned(coordinator)
    assert "at work with 20 images, on onnx-cpu" in log.read_text()
    assert [record.device_ids for record in rounds] == [DEVICES] * recipe.rounds

    torch.set_num_threads(1)
    fleet = LocalFleet(recipe, shards, None)
    first = first_checkpoint(recipe)
    *_, last = federate(fleet, recipe, first)
    expected = last.checkpoint.weights
    assert apart(StoredWeights(model, "the model"), expected) <= 0.01 * apart(
        first.weights, expected
    )


def apart(first: Weights, second: Weights) -> float:
    return max(float(np.abs(first[name] - second[name]).max()) for name in second)
