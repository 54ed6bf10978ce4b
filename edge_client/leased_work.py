"""Does a task while its lease is renewed, and drops it when the device may not go on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NoReturn

from edge_client.device.device_folder import Report
from edge_client.device.this_device import ThisDevice
from edge_client.pace import Pace
from edge_client.peers import Peers
from edge_client.retry import bounded_pause
from edge_client.tasks.task_runner import TaskRunner
from hfmds.domain.tasks import Assignment, LateReason, TaskStage
from hfmds.errors import TooLate


@dataclass(frozen=True, slots=True)
class Rest:
    """The device must rest, so it left its task."""

    reason: str


class LeasedWork:
    """Does tasks under their leases."""

    def __init__(
        self, runner: TaskRunner, peers: Peers, this_device: ThisDevice, pace: Pace
    ) -> None:
        self._runner = runner
        self._coordinator = peers.coordinator
        self._to_coordinator = peers.coordinator_retry.call
        self._this_device = this_device
        self._pace = pace

    async def do(self, task: Assignment) -> Report | Rest:
        """Return the accepted report; if the lease ends first, cancel the work and raise why."""
        stages: asyncio.Queue[TaskStage] = asyncio.Queue()
        tasks: tuple[asyncio.Task[Report | Rest], ...] = (
            asyncio.create_task(self._runner.run(task, stages)),  # it counts most, so it is first
            asyncio.create_task(self._keep_renewing(task)),
            asyncio.create_task(self._keep_telling(task, stages)),
            asyncio.create_task(self._wait_for_rest()),
        )
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(running for running in tasks if running in ended).result()
        finally:
            for running in tasks:
                running.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_renewing(self, task: Assignment) -> NoReturn:
        """Renew the lease at every third of it, so that two calls may be lost; ends by an error."""
        lease_seconds = task.lease_seconds
        while True:
            await self._pace.sleep(bounded_pause(lease_seconds / 3))
            # While the coordinator is away, the work goes on: it may be back in time.
            lease_seconds = await self._renew(task)

    async def _keep_telling(self, task: Assignment, stages: asyncio.Queue[TaskStage]) -> NoReturn:
        """Report each stage that lasts, with a renewal of the lease; ends by an error."""
        while True:
            stage = await stages.get()
            await asyncio.sleep(self._pace.tell_stage_after_seconds)
            while not stages.empty():
                stage = stages.get_nowait()
            await self._renew(task, stage)

    async def _renew(self, task: Assignment, stage: TaskStage | None = None) -> float:
        try:
            renew = self._coordinator.renew_lease
            return await self._to_coordinator(renew, task.task_id, stage)
        except TooLate as error:
            if error.reason != LateReason.ACCEPTED.value:
                raise
            # The result counts already: the answer to its submission is on the way.
            return task.lease_seconds

    async def _wait_for_rest(self) -> Rest:
        """Return when the device may not work any longer."""
        while True:
            await asyncio.sleep(self._pace.look_every_seconds)
            reason = await asyncio.to_thread(self._this_device.refusal, working=True)
            if reason:
                return Rest(reason)
