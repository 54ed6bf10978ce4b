"""Backups of both running servers, and runs that continue from them on other disks."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hfmds.cli.main import main
from hfmds.storage.blobs import FolderBlobs, verify_blob
from hfmds.storage.files import remove_folder
from hfmds.storage.staging import Staging
from hfmds.wire.chunks import Content
from hfmds.wire.clients.store_client import StoreClient
from tests.support.operator import Operator, Outcome
from tests.support.postgres import PostgresServer
from tests.support.scripted_devices import Call, ScriptedDevice, peer
from tests.support.small_run import SECONDS, run_on, stage, undisturbed
from tests.support.supervision import Launcher, servers

pytestmark = pytest.mark.integration

PROGRAMS = (
    "coordinator",
    "synthesis_store",
)  # the coordinator first: it refers to content of the store


class Held:
    """Delays a device's update, so that the run stays in its second round."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self._updates = 0

    async def __call__(self, call: Call) -> Any:
        if call.method == "submit_update":
            self._updates += 1
            if self._updates == 2:
                self.reached.set()
                await self.released.wait()
        return await call()


async def interrupted(
    launcher: Launcher,
    folder: Path,
    back_up: Callable[[], None],
    *,
    to_the_end: bool = False,
    **settings: str,
) -> None:
    """Start a run, and make a backup in its second round; then stop or complete the run."""
    held = Held()
    async with stage(launcher, folder, **settings) as on, AsyncExitStack() as stack:
        for device in (on.device("a"), on.device("b", held)):
            await stack.enter_async_context(device.working())
        await held.reached.wait()
        await asyncio.to_thread(back_up)
        if to_the_end:
            held.released.set()
            await on.operator.outcome()


def back_up(folder: Path, to: Path) -> None:
    for program in PROGRAMS:
        data = str(folder / f"{program}-data")
        assert main(["backup", program, str(to / program), "--data-dir", data]) == 0


def restore(backup: Path, folder: Path) -> None:
    for program in PROGRAMS:
        data = str(folder / f"{program}-data")
        assert main(["restore", program, str(backup / program), "--data-dir", data]) == 0


async def go_on(
    launcher: Launcher, restored: Path, devices: Path, **settings: str
) -> tuple[Outcome, list[str]]:
    """Complete the run on restored servers, and require that all its snapshots are complete."""
    async with (
        asyncio.timeout(SECONDS),
        servers(launcher, restored, **settings) as (coordinator, store),
        Operator.of(coordinator.address) as operator,
        AsyncExitStack() as stack,
    ):
        for name in ("a", "b"):
            device = ScriptedDevice(name, devices, coordinator.address, store.address)
            await stack.enter_async_context(device.working())
        outcome = await operator.outcome()
        await require_whole_snapshots(store.address, restored)
        return outcome, await operator.outline("run")


async def require_whole_snapshots(address: str, folder: Path) -> None:
    content = Content(FolderBlobs(folder / "shards"), Staging(folder / "partial", 2**30))
    client = StoreClient(peer("store", address))
    try:
        snapshots = await client.list_snapshots("run")
        assert len(snapshots) == run_on().recipe.rounds
        for listed in snapshots:
            snapshot = await client.get_snapshot(listed.snapshot_id)
            shards = [shard.digest for shard in snapshot.shards]
            await client.download_shards(snapshot.snapshot_id, shards, content)
            for digest in shards:
                verify_blob(content.blobs, digest)
    finally:
        await client.close()


async def restored_outcome(
    launcher: Launcher, folder: Path, *, to_the_end: bool
) -> tuple[Outcome, list[str]]:
    """Return the outcome of a run whose servers lost their data after a backup."""
    old, new = folder / "old", folder / "new"
    for data_folder in (old, new):
        data_folder.mkdir()
    backing_up = partial(back_up, old, folder / "backup")
    await interrupted(launcher, old, backing_up, to_the_end=to_the_end)
    for program in PROGRAMS:
        remove_folder(old / f"{program}-data")
    restore(folder / "backup", new)
    return await go_on(launcher, new, devices=old)


async def test_a_run_restored_from_a_backup_gives_the_undisturbed_result(
    launcher: Launcher, tmp_path: Path
) -> None:
    expected = await undisturbed(launcher, tmp_path)
    outcome, events = await restored_outcome(launcher, tmp_path, to_the_end=False)
    assert outcome == expected
    assert events == ["run-created", "run-completed"]


async def test_work_after_a_backup_is_repeated(launcher: Launcher, tmp_path: Path) -> None:
    outcome, events = await restored_outcome(launcher, tmp_path, to_the_end=True)
    # Devices keep memories of rounds that the servers lost.
    assert outcome.cohorts == (("a", "b"),) * 3
    assert events == ["run-created", "run-completed"]


async def test_a_run_continues_from_a_dump_and_a_copy_of_the_content(
    launcher: Launcher, postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    expected = await undisturbed(launcher, tmp_path)
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    for program in PROGRAMS:
        assert main(["database", "upgrade", program, "--database-url", postgres_url]) == 0

    def dump_and_copy() -> None:
        postgres_server.dump(postgres_url, tmp_path / "dump")
        shutil.copytree(old / "content", new / "content")

    def settings(folder: Path, database_url: str) -> dict[str, str]:
        return {"database_url": database_url, "blobs_url": (folder / "content").as_uri()}

    await interrupted(launcher, old, dump_and_copy, **settings(old, postgres_url))
    remove_folder(old / "content")
    restored = postgres_server.restored(postgres_url, tmp_path / "dump")
    outcome, events = await go_on(launcher, new, old, **settings(new, restored))
    assert outcome == expected
    assert events == ["run-created", "run-completed"]
