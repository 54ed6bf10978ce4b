"""Two coordinators on one PostgreSQL and one S3: a takeover loses nothing.

Device b knows the one that stands by at first, so that all it does is done there; device a knows
both.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.records.tables import LeadershipRow
from hfmds.domain.runs import Phase
from hfmds.errors import NotFound
from hfmds.storage.database import opened_database, read_session
from hfmds.storage.schema import Schema
from tests.support.operator import Operator, Outcome
from tests.support.postgres import PostgresServer
from tests.support.s3 import S3Server
from tests.support.scripted_devices import Call, Interceptor, pass_on
from tests.support.small_run import Stage, run_on, undisturbed
from tests.support.supervision import Launcher, Supervised
from tests.support.waiting import eventually

log = logging.getLogger(__name__)

pytestmark = pytest.mark.integration

SECONDS = 120.0
LEASE_SECONDS = 2.0
_SPARE_SECONDS = 30.0  # spare time for a takeover on a busy machine
LEADS = "this coordinator leads"
LEADS_NO_LONGER = "no longer leads"
# Synthesis and training.
EVERY_RESULT = [(number, device) for number in (1, 2, 3) for device in ("a", "a", "b", "b")]


class Coordinator:
    """A replica that a test may kill or suspend."""

    def __init__(
        self, launcher: Launcher, folder: Path, environment: dict[str, str], **settings: str
    ) -> None:
        folder.mkdir()
        self._launcher = launcher
        self._address_file = folder / "address.json"
        self._log = folder / "log"
        own = {"data_dir": folder / "data", "address_file": self._address_file}
        places = {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"}
        settings = {**settings, **places, **{name: str(path) for name, path in own.items()}}
        journal = folder / "journal"
        self._process = launcher.launch(
            "coordinator", settings, self._log, journal, None, environment
        )

    async def address(self) -> str:
        """Wait until the replica serves; return its address."""
        await eventually(self._address_file.exists)
        address: str = json.loads(self._address_file.read_text())["grpc"]
        return address

    async def says(self, message: str) -> None:
        """Wait until the log has this message."""
        await eventually(lambda: self._log.exists() and message in self._log.read_text())

    def kill(self) -> None:
        self._process.kill()

    def signal(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)


@dataclass
class Pair:
    """Both coordinators, with a run that waits for devices a and b."""

    leader: Coordinator
    standby: Coordinator
    stage: Stage
    addresses: str  # of both coordinators

    async def outcome(self, of_b: Interceptor) -> Outcome:
        """Return the outcome of the run, and require that each result counts once."""
        a = self.stage.device("a", coordinator=self.addresses)
        outcome = await self.stage.outcome(a, self.stage.device("b", of_b))
        assert sorted(await self.stage.operator.accepted()) == EVERY_RESULT
        return outcome


@asynccontextmanager
async def pair(
    launcher: Launcher, folder: Path, database_url: str, s3: S3Server
) -> AsyncIterator[Pair]:
    """Start the servers. The operator calls the standby coordinator."""
    with opened_database(database_url) as engine:
        Schema("coordinator").upgrade(engine)
    where = {"data_dir": str(folder / "store-data"), "listen": "127.0.0.1:0"}
    store = Supervised(launcher, "synthesis_store", folder, **where)
    async with asyncio.timeout(SECONDS), store.running():
        settings = {
            "database_url": database_url,
            "blobs_url": s3.new_place(),
            "store": store.address,
            "leader_lease_seconds": str(LEASE_SECONDS),
        }
        coordinators: list[Coordinator] = []
        try:
            for name in ("first", "second"):
                coordinator = Coordinator(launcher, folder / name, s3.environment, **settings)
                coordinators.append(coordinator)
                await coordinator.address()
                await coordinators[0].says(LEADS)
            leader, standby = coordinators
            addresses = [await coordinator.address() for coordinator in coordinators]
            async with Operator.of(addresses[1]) as operator:
                await operator.create(run_on())
                on = Stage(folder, run_on().recipe.model, addresses[1], store.address, operator)
                yield Pair(leader, standby, on, ",".join(addresses))
        finally:
            for coordinator in coordinators:
                coordinator.kill()


def at_submission(number: int, act: Callable[[], Awaitable[None]]) -> Interceptor:
    """Run an action once, just before the device submits its n-th result."""
    submitted = 0

    async def intercept(call: Call) -> object:
        nonlocal submitted
        if call.method.startswith("submit"):
            submitted += 1
            if submitted == number:
                await act()
        return await call()

    return intercept


@pytest.fixture
async def expected(launcher: Launcher, tmp_path: Path) -> Outcome:
    (tmp_path / "undisturbed").mkdir()
    return await undisturbed(launcher, tmp_path / "undisturbed")  # on SQLite


def epoch(database_url: str) -> int:
    with opened_database(database_url) as engine, read_session(engine) as session:
        return session.get_one(LeadershipRow, "coordinator").epoch


@pytest.mark.parametrize("submission", [3, 4])  # synthesis and training in round 2
async def test_another_coordinator_takes_over_when_the_leader_is_killed(
    launcher: Launcher,
    tmp_path: Path,
    postgres_url: str,
    s3_server: S3Server,
    expected: Outcome,
    submission: int,
) -> None:
    async with pair(launcher, tmp_path, postgres_url, s3_server) as both:
        killed = asyncio.Event()

        async def kill() -> None:
            both.leader.kill()
            killed.set()

        running = asyncio.create_task(both.outcome(at_submission(submission, kill)))
        await killed.wait()
        killed_at = time.monotonic()
        async with asyncio.timeout(LEASE_SECONDS + _SPARE_SECONDS):
            await both.standby.says(LEADS)
        seconds = time.monotonic() - killed_at
        assert await running == expected
    assert epoch(postgres_url) == 2
    log.info("the standby coordinator leads %.1f s after the leader was killed", seconds)


async def test_a_suspended_leader_loses_the_lead(
    launcher: Launcher,
    tmp_path: Path,
    postgres_url: str,
    s3_server: S3Server,
    expected: Outcome,
) -> None:
    async with pair(launcher, tmp_path, postgres_url, s3_server) as both:

        async def stop_past_the_lease() -> None:
            """Suspend the leader until the other replica leads, then wake it."""
            both.leader.signal(signal.SIGSTOP)
            await both.standby.says(LEADS)
            both.leader.signal(signal.SIGCONT)
            await both.leader.says(LEADS_NO_LONGER)

        outcome = await both.outcome(at_submission(4, stop_past_the_lease))
        async with Operator.of(await both.leader.address()) as first_operator:
            assert [outcome, await first_operator.outcome()] == [expected, expected]
    assert epoch(postgres_url) == 2


async def test_both_replicas_survive_a_restart_of_the_database(
    launcher: Launcher,
    tmp_path: Path,
    postgres_server: PostgresServer,
    postgres_url: str,
    s3_server: S3Server,
    expected: Outcome,
) -> None:
    async def restart() -> None:
        await asyncio.to_thread(postgres_server.restart, signal.SIGKILL)

    async with pair(launcher, tmp_path, postgres_url, s3_server) as both:
        assert await both.outcome(at_submission(4, restart)) == expected


async def test_a_stopped_leader_hands_over_immediately(
    launcher: Launcher,
    tmp_path: Path,
    postgres_url: str,
    s3_server: S3Server,
    expected: Outcome,
) -> None:
    async with pair(launcher, tmp_path, postgres_url, s3_server) as both:

        async def stop() -> None:
            both.leader.signal(signal.SIGTERM)
            await both.standby.says(LEADS)

        assert await both.outcome(at_submission(3, stop)) == expected
    assert epoch(postgres_url) == 2


async def test_drain_and_deletion_apply_at_both_coordinators(
    launcher: Launcher,
    tmp_path: Path,
    postgres_url: str,
    s3_server: S3Server,
    expected: Outcome,
) -> None:
    async with (
        pair(launcher, tmp_path, postgres_url, s3_server) as both,
        Operator.of(await both.leader.address()) as leader_operator,
    ):
        standby_operator = both.stage.operator
        await standby_operator.drain(on=True)
        await standby_operator.until_in(Phase.DRAINED)  # the leader has read the drain
        running = asyncio.create_task(both.outcome(pass_on))
        # The leader opens nothing for devices that have come.
        await leader_operator.until_seen("a", lambda device: True)
        assert await leader_operator.funnels() == ()
        await leader_operator.drain(on=False)
        assert await running == expected
        await standby_operator.delete("run")
        for operator in (leader_operator, standby_operator):
            with pytest.raises(NotFound):
                await operator.run()
            assert (await operator.outline("run"))[-1] == "run-deleted"


async def test_a_coordinator_with_separate_content_is_refused(
    launcher: Launcher, tmp_path: Path, postgres_url: str
) -> None:
    with opened_database(postgres_url) as engine:
        Schema("coordinator").upgrade(engine)

    coordinators: list[Coordinator] = []
    try:
        async with asyncio.timeout(SECONDS):
            for name in ("first", "second"):
                coordinator = Coordinator(launcher, tmp_path / name, {}, database_url=postgres_url)
                coordinators.append(coordinator)
                if name == "first":
                    await coordinator.says(LEADS)
            await coordinator.says("set HFMDS_BLOBS_URL")
    finally:
        for coordinator in coordinators:
            coordinator.kill()
