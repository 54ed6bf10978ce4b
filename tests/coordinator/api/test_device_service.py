"""A device uploads and submits an update in one call over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from hfmds.domain.digest import Digest
from hfmds.domain.learning import Traffic
from hfmds.domain.tasks import Assignment, UpdateReport
from hfmds.errors import InvalidInput, TooLate
from hfmds.storage.blobs import FolderBlobs
from hfmds.wire.clients.coordinator_client import CoordinatorClient
from hfmds.wire.tensors import encode_weights
from tests.coordinator.workbench import PROFILE, Workbench, make_spec, served, workbench


class Scene:
    """A device over the wire, with a task and an update for it."""

    def __init__(self, bench: Workbench, client: CoordinatorClient, folder: Path) -> None:
        self.bench = bench
        self.client = client
        self.blobs = FolderBlobs(folder)

    async def begin(self) -> None:
        await self.bench.create(make_spec())
        task = await self.client.check_in(PROFILE, 30.0)
        assert isinstance(task, Assignment)
        self.task = task
        changed = {name: array + 1 for name, array in self.bench.weights(task).items()}
        self.update = self.blobs.put_bytes(encode_weights(changed))

    async def submit(self, update: Digest | None = None) -> bool:
        update = update or self.update
        report = UpdateReport(update, 5, 1.5, Traffic(7, update.size_bytes), 1.0)
        return await self.client.submit_update(self.task.task_id, report, self.blobs)

    def accepted(self) -> int:
        (device,) = self.bench.devices()
        return device.accepted_tasks


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with workbench(tmp_path / "bench") as bench, served(bench) as peer:
        client = CoordinatorClient(peer, "a")
        try:
            scene = Scene(bench, client, tmp_path / "device")
            await scene.begin()
            yield scene
        finally:
            await client.close()


async def test_an_update_counts_once_its_upload_is_answered(scene: Scene) -> None:
    assert not await scene.submit()
    assert scene.accepted() == 1
    last_round = (await scene.bench.until(lambda run: run.completed_rounds == 1)).last_round
    assert last_round is not None
    assert last_round.traffic == Traffic(7, scene.update.size_bytes)


async def test_a_repeated_submission_counts_nothing_again(scene: Scene) -> None:
    await scene.submit()
    await scene.bench.until(lambda run: run.completed_rounds == 1)
    scene.bench.app.contents.of("run").blobs.delete(scene.update)  # as at the end of its round
    assert await scene.submit()
    state = await scene.bench.uploads.query("a", scene.task.task_id, scene.update)
    assert state.complete  # the device may have lost the answer
    assert scene.accepted() == 1


async def test_an_update_already_uploaded_is_counted(scene: Scene) -> None:
    scene.bench.put_update(scene.task, b"".join(scene.blobs.read(scene.update)))
    assert not await scene.submit()
    assert scene.accepted() == 1


async def test_a_malformed_update_is_refused(scene: Scene) -> None:
    weights = {n: array * np.nan for n, array in scene.bench.weights(scene.task).items()}
    broken = scene.blobs.put_bytes(encode_weights(weights))
    with pytest.raises(InvalidInput, match="not finite"):
        await scene.submit(broken)
    assert scene.accepted() == 0
    await scene.submit()
    assert scene.accepted() == 1


async def test_a_late_update_is_refused_as_too_late(scene: Scene) -> None:
    await asyncio.to_thread(scene.bench.runs.cancel, "run")
    with pytest.raises(TooLate) as error:
        await scene.submit()
    assert error.value.reason == "cancelled"
