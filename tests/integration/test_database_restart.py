"""A run survives stops and kills of the database server."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from hfmds.storage.database import open_database
from hfmds.storage.schema import Schema
from tests.support.postgres import PostgresServer
from tests.support.scripted_devices import Call
from tests.support.small_run import TASKS, stage, undisturbed
from tests.support.supervision import Launcher

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
async def test_the_database_server_is_restarted_during_every_task(
    launcher: Launcher,
    tmp_path: Path,
    postgres_server: PostgresServer,
    postgres_url: str,
    signum: signal.Signals,
) -> None:
    (tmp_path / "undisturbed").mkdir()
    expected = await undisturbed(launcher, tmp_path / "undisturbed")  # on SQLite
    engine = open_database(postgres_url)
    for program in ("coordinator", "synthesis_store"):
        Schema(program).upgrade(engine)
    engine.dispose()
    restarted: set[str] = set()

    async def submit_during_restart(call: Call) -> object:
        """Submit each task while the server restarts."""
        if not call.method.startswith("submit") or call.args[0] in restarted:
            return await call()
        restarted.add(call.args[0])
        restarting = asyncio.create_task(asyncio.to_thread(postgres_server.restart, signum))
        try:
            return await call()
        finally:
            await restarting

    async with stage(launcher, tmp_path, database_url=postgres_url) as on:
        outcome = await on.outcome(on.device("a", submit_during_restart), on.device("b"))
    assert outcome == expected
    assert len(restarted) == TASKS
