"""An update that is handed in with its upload, in one call over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from coordinator.api.servicer import CoordinatorServicer
from hfmds.domain.digest import Digest
from hfmds.domain.learning import Traffic
from hfmds.domain.tasks import Assignment, UpdateReport
from hfmds.errors import InvalidInput, TooLate
from hfmds.service.client.peer import Peer
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.server.server import GrpcServer
from hfmds.storage.blobs import FolderBlobs
from hfmds.v1 import coordinator_pb2 as pb
from hfmds.wire.clients.coordinator_client import CoordinatorClient
from hfmds.wire.conversions.common import digest_message
from hfmds.wire.tensors import encode_weights
from tests.coordinator.workbench import PROFILE, Workbench, make_spec, workbench


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

    def report(self, update: Digest | None = None, sent_bytes: int = 0) -> UpdateReport:
        return UpdateReport(update or self.update, 5, 1.5, Traffic(7, sent_bytes), 1.0)

    async def upload(self, update: Digest | None = None) -> int:
        """With the report."""
        report = self.report(update)
        return await self.client.upload_update(self.task.task_id, report.update, self.blobs, report)

    async def submit(self, sent_bytes: int) -> bool:
        report = self.report(sent_bytes=sent_bytes)
        return await self.client.submit_update(self.task.task_id, report)

    def accepted(self) -> int:
        (device,) = self.bench.oversight.devices()
        return device.accepted_tasks


def play(folder: Path, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with workbench(folder / "bench") as bench, served(bench) as peer:
            client = CoordinatorClient(peer, "a")
            try:
                scene = Scene(bench, client, folder / "device")
                await scene.begin()
                await act(scene)
            finally:
                await client.close()

    asyncio.run(scenario())


@asynccontextmanager
async def served(bench: Workbench) -> AsyncIterator[Peer]:
    server = GrpcServer("127.0.0.1:0", RpcMetrics("coordinator", CollectorRegistry()))
    CoordinatorServicer(bench.dispatch).add_to(server)
    await server.start()
    try:
        yield Peer("coordinator", server.address, "HFMDS_COORDINATOR")
    finally:
        await server.stop(0)


def test_an_update_counts_once_its_upload_is_answered(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        size_bytes = scene.update.size_bytes
        assert await scene.upload() == size_bytes
        assert scene.accepted() == 1
        round_ = (await scene.bench.until(lambda run: run.completed_rounds == 1)).last_round
        assert round_ is not None
        assert round_.traffic == Traffic(7, size_bytes)  # also what the upload took
        assert not await scene.submit(size_bytes)  # it is known to count: nobody is asked
        assert await scene.submit(size_bytes)  # and now it is
        assert scene.accepted() == 1

    play(tmp_path, act)


def test_a_repeated_upload_counts_nothing_again(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        sent = await scene.upload()
        await scene.bench.until(lambda run: run.completed_rounds == 1)
        scene.bench.app.contents.of("run").blobs.delete(scene.update)  # as after its round
        assert await scene.upload() == 0
        state = await scene.bench.dispatch.query_upload("a", scene.task.task_id, scene.update)
        assert state.complete  # for who asks first, as after an answer that was lost
        assert await scene.submit(sent)
        assert scene.accepted() == 1

    play(tmp_path, act)


def test_what_was_there_before_is_handed_in_by_a_call_of_its_own(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.client.upload_update(scene.task.task_id, scene.update, scene.blobs)
        assert await scene.upload() == 0
        assert scene.accepted() == 0
        assert not await scene.submit(0)
        assert scene.accepted() == 1

    play(tmp_path, act)


def test_an_update_that_is_not_sound_is_refused(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        weights = {n: array * np.nan for n, array in scene.bench.weights(scene.task).items()}
        broken = scene.blobs.put_bytes(encode_weights(weights))
        with pytest.raises(InvalidInput, match="not finite"):
            await scene.upload(broken)
        assert scene.accepted() == 0
        await scene.upload()
        assert scene.accepted() == 1

    play(tmp_path, act)


def test_an_update_that_comes_too_late_is_told_so(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await asyncio.to_thread(scene.bench.runs.cancel, "run")
        with pytest.raises(TooLate, match="cancelled"):
            await scene.upload()

    play(tmp_path, act)


@pytest.mark.parametrize("field", ["device_id", "task_id", "update"])
def test_nothing_is_handed_in_but_what_is_uploaded(tmp_path: Path, field: str) -> None:
    async def act(scene: Scene) -> None:
        ids = {"device_id": "a", "task_id": scene.task.task_id}
        update, samples = digest_message(scene.update), 5
        hand_in = pb.SubmitUpdateRequest(**ids, update=update, samples=samples)
        if field == "update":
            hand_in.update.CopyFrom(digest_message(replace(scene.update, sha256="0" * 64)))
        else:
            setattr(hand_in, field, "another")
        header = pb.UploadUpdateHeader(**ids, update=update, hand_in=hand_in)

        async def requests() -> AsyncIterator[pb.UploadUpdateRequest]:
            yield pb.UploadUpdateRequest(header=header)

        with pytest.raises(InvalidInput, match="not what is uploaded"):
            await CoordinatorServicer(scene.bench.dispatch).UploadUpdate(requests(), None)  # type: ignore[arg-type]

    play(tmp_path, act)
