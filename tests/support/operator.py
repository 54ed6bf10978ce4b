"""An operator that repeats each call until a coordinator answers, also across its restarts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hfmds.domain.administration.operations import Funnel
from hfmds.domain.devices import Device
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.runs import Phase, Run, RunSpec, RunState
from hfmds.errors import WrongState
from hfmds.event_chain import Event, flaw
from hfmds.wire.clients.admin_client import AdminClient
from tests.support.scripted_devices import peer, retrying
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Outcome:
    """The results of a run. They must not depend on when a program was killed."""

    cohorts: tuple[tuple[str, ...], ...]  # by round
    pools: tuple[int, ...]  # images in the pool, by round
    models: tuple[Digest, ...]  # by round


class Operator:
    """Repeats every call until the coordinator answers."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._persist = retrying("coordinator").call

    @classmethod
    @asynccontextmanager
    async def of(cls, coordinator: str) -> AsyncIterator[Operator]:
        """Open an operator for the coordinator at this address."""
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

    async def outline(self, run_id: str) -> list[str]:
        """Return the events that begin and end a run. The others may vary after a kill."""
        events = await self._events(run_id)
        ends = ("run-created", "run-cancelled", "run-completed", "run-deleted")
        return [event.kind for event in events if event.kind in ends]

    async def accepted(self) -> list[tuple[int, str]]:
        """Return the round and the device of each result that the log shows as accepted."""
        events = await self._events("run")
        accepted = [json.loads(e.details) for e in events if e.kind == "task-accepted"]
        return [(details["round"], details["device"]) for details in accepted]

    async def _events(self, run_id: str) -> Sequence[Event]:
        """Return the log of a run, and check its chain of hashes."""
        run_uid, events = await self._persist(self._admin.list_events, run_id)
        assert flaw(events, run_uid) == ""
        return events

    async def pause(self, run_id: str = "run") -> None:
        await self._persist(self._admin.pause_run, run_id)

    async def resume(self, run_id: str = "run") -> None:
        """Resume a run. A call that a kill left unanswered may have resumed it already."""
        try:
            await self._persist(self._admin.resume_run, run_id)
        except WrongState:
            assert (await self.run(run_id)).state is RunState.COMPLETED

    async def run(self, run_id: str = "run") -> Run:
        return await self._persist(self._admin.get_run, run_id)

    async def until_paused(self) -> str:
        """Wait until the run is paused, and return the reason."""

        async def ended() -> Run | None:
            run = await self.run()
            return None if run.state is RunState.RUNNING else run

        run = await eventually(ended)
        assert run is not None
        assert run.state is RunState.PAUSED, run
        return run.state_reason

    async def until_in(self, phase: Phase, round_number: int = 0, run_id: str = "run") -> None:
        """Wait until a run is in this phase, of any round if the number is 0."""

        async def in_phase() -> bool:
            progress = (await self.run(run_id)).progress
            return (
                progress is not None
                and progress.phase is phase
                and round_number in (0, progress.round_number)
            )

        await eventually(in_phase)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition outside of the run. The run must not stop before."""

        async def holds() -> bool:
            if condition():
                return True
            await self._require_active()
            return False

        await eventually(holds)

    async def until_seen(self, device_id: str, condition: Callable[[Device], bool]) -> None:
        """Wait until the coordinator reports a device for which the condition holds."""

        async def seen() -> bool:
            devices = await self.devices()
            if any(device.device_id == device_id and condition(device) for device in devices):
                return True
            await self._require_active()
            return False

        await eventually(seen)

    async def devices(self) -> tuple[Device, ...]:
        return await self._persist(self._admin.list_devices)

    async def outcome(self) -> Outcome:
        """Wait until the run is completed, and return its results."""

        async def completed() -> bool:
            return await self._require_active() is RunState.COMPLETED

        await eventually(completed)
        return await self._persist(self._results)

    async def _require_active(self) -> RunState:
        run = await self.run()
        assert run.state in (RunState.RUNNING, RunState.COMPLETED), f"{run.state_reason} ({run})"
        return run.state

    async def _results(self) -> Outcome:
        rounds, models = await self._admin.list_rounds("run"), []
        for completed in rounds:
            chunks = self._admin.download_model("run", completed.number)
            models.append(digest_of(b"".join([chunk async for chunk in chunks])))
        return Outcome(
            cohorts=tuple(completed.device_ids for completed in rounds),
            pools=tuple(completed.pool.samples if completed.pool else 0 for completed in rounds),
            models=tuple(models),
        )
