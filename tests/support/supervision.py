"""Programs that a test kills, and that are started again after each kill.

`Launcher` sends orders to `tests.kills.programs_that_die`, which makes the processes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from tests.kills.crash_points import CrashPoint, Journal
from tests.support.forking import Fork, Forks
from tests.support.server_processes import free_address
from tests.support.waiting import eventually

_LOOK_SECONDS = 0.01


class Launcher(Forks):
    """Starts processes. They end when the launcher closes."""

    def __init__(self) -> None:
        super().__init__("tests.kills.programs_that_die")

    def launch(
        self,
        program: str,
        settings: dict[str, str],
        log: Path,
        journal: Path,
        point: CrashPoint | None,
        environment: Mapping[str, str] = MappingProxyType({}),
        *,
        done_before: int = 0,
        commit_together: bool = False,
    ) -> Fork:
        """Start a program with these HFMDS_ settings and other variables.

        Without `commit_together` the program commits each transaction alone.
        """
        ours = {f"HFMDS_{key.upper()}": value for key, value in settings.items()}
        order = {
            "program": program,
            "environment": {**environment, **ours},
            "log": str(log),
            "journal": str(journal),
            "point": dataclasses.asdict(point) if point else None,
            "done_before": done_before,
            "commit_together": commit_together,
        }
        return self.start(order)


class Supervised:
    """One program on a folder. It is killed at each point in turn, and started again."""

    def __init__(
        self,
        launcher: Launcher,
        program: str,
        folder: Path,
        points: Sequence[CrashPoint] = (),
        *,
        commit_together: bool = False,
        **settings: str,
    ) -> None:
        """Expect the points in the order in which the program reaches them."""
        self.address = ""  # known when the program is ready
        self._launcher = launcher
        self._program = program
        self._folder = folder
        self._points = points
        self._commit_together = commit_together
        self._lives: list[Path] = []  # the journal of each process
        self._address_file = folder / f"{program}.json"
        self._settings = {
            "address_file": str(self._address_file),
            "log_format": "json",
            "metrics_listen": "127.0.0.1:0",
            **settings,
        }

    @property
    def log(self) -> Path:
        return self._folder / f"{self._program}.log"

    @property
    def journal(self) -> Journal:
        """The commits of the first process, until its kill or until now."""
        return Journal.read(self._lives[0])

    @property
    def deaths(self) -> int:
        """The number of points at which the program was killed."""
        return len(self.killed_taking)

    @property
    def killed_taking(self) -> tuple[frozenset[str], ...]:
        """For each kill, the steps of the state machines that the killed commit took."""
        journals = map(Journal.read, self._lives)
        return tuple(journal.killed_taking for journal in journals if journal.killed)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the program up inside this context, except between a kill and the next start."""
        if "listen" in self._settings:  # the next process must answer at the same address
            self._settings["listen"] = free_address()
        self._process = self._launch()
        try:
            await self._until_ready()
            async with _beside(self._keep_up()):
                yield
        finally:
            self._process.kill()

    def _launch(self) -> Fork:
        died = len(self._lives)
        point = self._points[died] if died < len(self._points) else None
        done_before = 0
        if point:  # a kill may have made the program repeat the commit of the point
            done_before = self._done(point)
            point = replace(point, occurrence=max(point.occurrence, done_before + 1))
        self._lives.append(self._folder / f"{self._program}-{died + 1}.journal")
        return self._launcher.launch(
            self._program,
            self._settings,
            self.log,
            self._lives[-1],
            point,
            done_before=done_before,
            commit_together=self._commit_together,
        )

    def _done(self, point: CrashPoint) -> int:
        """Count the commits that the point names. A kill before a commit undoes its entry."""
        journals = [Journal.read(life) for life in self._lives]
        begun = sum(journal.done.count(point.what) for journal in journals)
        died = [at for at in self._points[: len(journals)] if at.what == point.what]
        return begun - sum(at.moment == "before" for at in died)

    async def _until_ready(self) -> None:
        def ready() -> bool:
            self._look_after()
            return self._address_file.exists()

        await eventually(ready)
        self.address = json.loads(self._address_file.read_text()).get("grpc", "")

    async def _keep_up(self) -> NoReturn:
        while True:
            self._look_after()
            await asyncio.sleep(_LOOK_SECONDS)

    def _look_after(self) -> None:
        """Start the program again after a kill at a point. Any other end is an error."""
        if self._process.poll() is None:
            return
        killed = Journal.read(self._lives[-1]).killed
        assert killed, (
            f"{self._program} ended with {self._process.returncode}, not by a kill:\n"
            f"{self.log.read_text()}"
        )
        self._address_file.unlink(missing_ok=True)
        self._process = self._launch()


@asynccontextmanager
async def servers(
    launcher: Launcher,
    folder: Path,
    points: Mapping[str, Sequence[CrashPoint]] = MappingProxyType({}),
    *,
    commit_together: bool = False,
    **settings: str,
) -> AsyncIterator[tuple[Supervised, Supervised]]:
    """Run the coordinator and the store on a folder. `points` says where each is killed."""

    def program(name: str, **its_own: str) -> Supervised:
        where = {"data_dir": str(folder / f"{name}-data"), "listen": "127.0.0.1:0"}
        return Supervised(
            launcher,
            name,
            folder,
            points.get(name, ()),
            commit_together=commit_together,
            **where,
            **settings,
            **its_own,
        )

    store = program("synthesis_store")
    async with store.running():
        coordinator = program("coordinator", store=store.address)
        async with coordinator.running():
            yield coordinator, store


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, NoReturn]) -> AsyncIterator[None]:
    """Do endless work beside this context. A failure of the work ends the context, too."""
    inside, working = asyncio.current_task(), asyncio.create_task(work)

    def end_inside(ended: asyncio.Task[NoReturn]) -> None:
        if inside and not ended.cancelled():
            inside.cancel()

    working.add_done_callback(end_inside)
    try:
        yield
    except asyncio.CancelledError:
        if working.done():
            working.result()
        raise
    finally:
        working.cancel()
