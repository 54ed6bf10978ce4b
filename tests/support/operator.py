"""An operator who bears with a coordinator that is killed and started again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hfmds.domain.devices import Device
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.runs import Phase, Run, RunSpec, RunState
from hfmds.event_chain import Event, flaw
from hfmds.wire.clients.admin_client import AdminClient
from hfmds.wire.conversions.operations import Funnel
from tests.support.scripted_devices import patience, peer

_LOOK_SECONDS = 0.03


@dataclass(frozen=True)
class Outcome:
    """What a run came to: all that must not depend on who was killed when."""

    cohorts: tuple[tuple[str, ...], ...]  # by round
    pools: tuple[int, ...]  # images in the pool, by round
    models: tuple[Digest, ...]  # by round


class Operator:
    """Every call is repeated until it is answered."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._persist = patience("coordinator").call

    @classmethod
    @asynccontextmanager
    async def of(cls, coordinator: str) -> AsyncIterator[Operator]:
        """One at work with the coordinator at this address."""
        admin = AdminClient(peer("coordinator", coordinator))
        try:
            yield cls(admin)
        finally:
            await admin.close()

    async def create(self, spec: RunSpec, run_id: str = "run") -> None:
        await self._persist(self._admin.create_run, spec, run_id)

    async def cancel(self, run_id: str) -> None:
        await self._persist(self._admin.cancel_run, run_id)

    async def delete(self, run_id: str) -> None:
        await self._persist(self._admin.delete_run, run_id)

    async def drain(self, *, on: bool) -> None:
        assert (await self._persist(self._admin.set_drain, on)).on is on

    async def funnels(self, run_id: str = "run") -> tuple[Funnel, ...]:
        return await self._persist(self._admin.funnels, run_id)

    async def told(self, run_id: str) -> list[str]:
        """What became of a run by its log; on the way there it may vary."""
        events = await self._events(run_id)
        ends = ("run-created", "run-cancelled", "run-completed", "run-deleted")
        return [event.kind for event in events if event.kind in ends]

    async def accepted(self) -> list[tuple[int, str]]:
        """By the run's log: of each result that was accepted, the round of its task, and whose."""
        events = await self._events("run")
        accepted = [json.loads(e.details) for e in events if e.kind == "task-accepted"]
        return [(details["round"], details["device"]) for details in accepted]

    async def _events(self, run_id: str) -> Sequence[Event]:
        """A run's log, which must be sound."""
        run_uid, events = await self._persist(self._admin.list_events, run_id)
        assert flaw(events, run_uid) == ""
        return events

    async def pause(self, run_id: str = "run") -> None:
        await self._persist(self._admin.pause_run, run_id)

    async def resume(self, run_id: str = "run") -> None:
        await self._persist(self._admin.resume_run, run_id)

    async def run(self, run_id: str = "run") -> Run:
        return await self._persist(self._admin.get_run, run_id)

    async def until_paused(self) -> str:
        """The reason why the run is paused, when it is."""
        while (run := await self.run()).state is RunState.RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        assert run.state is RunState.PAUSED, run
        return run.state_reason

    async def until_in(self, phase: Phase, round_number: int = 0, run_id: str = "run") -> None:
        """Wait until a run is in this phase, of whichever round if none is named."""
        while True:
            now = (await self.run(run_id)).progress
            if now and now.phase is phase and round_number in (0, now.round_number):
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def until(self, so: Callable[[], bool]) -> None:
        """Wait for something else than the run, which must go on meanwhile."""
        while not so():
            await self._require_going_on()
            await asyncio.sleep(_LOOK_SECONDS)

    async def until_seen(self, device_id: str, so: Callable[[Device], bool]) -> None:
        """Wait until the coordinator says so of a device."""
        while not any(d.device_id == device_id and so(d) for d in await self.devices()):
            await self._require_going_on()
            await asyncio.sleep(_LOOK_SECONDS)

    async def devices(self) -> tuple[Device, ...]:
        return await self._persist(self._admin.list_devices)

    async def outcome(self) -> Outcome:
        """What the run came to, once it is completed."""
        while await self._require_going_on() is not RunState.COMPLETED:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        return await self._persist(self._look)

    async def _require_going_on(self) -> RunState:
        run = await self.run()
        assert run.state in (RunState.RUNNING, RunState.COMPLETED), f"{run.state_reason} ({run})"
        return run.state

    async def _look(self) -> Outcome:
        rounds, models = await self._admin.list_rounds("run"), []
        for completed in rounds:
            chunks = self._admin.download_model("run", completed.number)
            models.append(digest_of(b"".join([chunk async for chunk in chunks])))
        return Outcome(
            cohorts=tuple(completed.device_ids for completed in rounds),
            pools=tuple(completed.pool.samples if completed.pool else 0 for completed in rounds),
            models=tuple(models),
        )
