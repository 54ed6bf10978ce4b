"""Scenarios of one run each, for kinds of rounds that `tests.kills.full_scenario` lacks.

A kill of any program at any time must not change the result.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from hfmds.algorithm.local_work import LocalWork, Progress
from hfmds.domain.recipe import Normalisation, Recipe
from hfmds.domain.round_policy import Asynchronous, RoundPolicy
from hfmds.domain.runs import Phase, RunSpec, RunState
from hfmds.errors import InvalidInput
from tests.kills.crash_points import held
from tests.kills.fleet_changes import change_the_fleet
from tests.kills.full_scenario import PATIENCE_SECONDS, SECONDS
from tests.kills.lost_results import ResultWatcher
from tests.support.operator import Operator, Outcome
from tests.support.scripted_devices import MODEL, Call, ScriptedDevice
from tests.support.waiting import eventually

_NORMALISATION = Normalisation((0.5,), (0.5,))
_GIVEN_UP = "device c gives its task up"


class ShortScenario:
    """Devices arrive, and a run begins and ends. Subclasses add events."""

    devices: ClassVar[str]
    spec: ClassVar[RunSpec]

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        self.coordinator = coordinator
        self.store = store
        self.watcher = ResultWatcher()
        self._devices = [
            ScriptedDevice(
                name,
                folder,
                coordinator,
                store,
                script=partial(self.before_work, name),
                interceptor=self.watcher.of(name, partial(self.call, name)),
            )
            for name in self.devices
        ]

    async def execute(self) -> Outcome:
        """Run the scenario, and return the results of the run."""
        async with (
            asyncio.timeout(SECONDS),
            Operator.of(self.coordinator) as operator,
            AsyncExitStack() as stack,
        ):
            for device in self._devices:
                await stack.enter_async_context(device.working())
            await eventually(partial(self._are_seen, operator))
            await operator.create(self.spec)
            await self.during_the_run(operator)
            outcome = await operator.outcome()
            await self.afterwards(operator)
            self.watcher.require_sound()
            return outcome

    async def _are_seen(self, operator: Operator) -> bool:
        return len(await operator.devices()) == len(self._devices)

    def before_work(self, device_id: str, work: LocalWork, progress: Progress) -> None:
        """Do something before the work of a device, in a thread. Raise to give the task up."""

    async def call(self, device_id: str, call: Call) -> object:
        """Make a call of a device at the right time."""
        return await call()

    async def during_the_run(self, operator: Operator) -> None:
        """Do what the operator does during the run."""

    async def afterwards(self, operator: Operator) -> None:
        """Check the end of the run, while the devices are still connected."""


def _wait(event: threading.Event, progress: Progress) -> None:
    """Wait inside the work of a device, as long as the coordinator wants the result."""
    while not event.wait(0.01):
        progress(1, 2)


class SlowDeviceScenario(ShortScenario):
    """One device is too slow, so the coordinator asks another one.

    The coordinator asks e or f. That device waits until its time is over. The other does the work.
    """

    devices = "ef"
    spec = RunSpec(
        Recipe(MODEL, _NORMALISATION, rounds=1, seed=3, cohort_size=1),
        RoundPolicy(
            minimum_devices=1,
            lease_seconds=PATIENCE_SECONDS,
            task_deadline_seconds=PATIENCE_SECONDS,
            over_selection=1.0,
        ),
    )
    _slow_device = ""

    def before_work(self, device_id: str, work: LocalWork, progress: Progress) -> None:
        self._slow_device = self._slow_device or device_id
        while device_id == self._slow_device:
            progress(1, 2)  # raises when the coordinator no longer wants the result
            time.sleep(0.01)


class LateResultScenario(ShortScenario):
    """A round wants two results of three devices. Device c hands in last and is late.

    After the run, the operator changes the fleet.
    """

    devices = "abc"
    spec = RunSpec(
        Recipe(MODEL, _NORMALISATION, rounds=1, seed=9, cohort_size=2),
        RoundPolicy(
            minimum_devices=2,
            deadline_seconds=600.0,
            lease_seconds=PATIENCE_SECONDS,
            over_selection=1.5,
        ),
    )

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        super().__init__(folder, coordinator, store)
        self._c_is_ready = asyncio.Event()

    async def call(self, device_id: str, call: Call) -> object:
        if call.method == "submit_update" and device_id == "c":
            self._c_is_ready.set()
            await eventually(lambda: len(self.watcher.taken) >= 2)
        elif call.method == "submit_update":
            await self._c_is_ready.wait()  # else c would be too late to upload
        return await call()

    async def afterwards(self, operator: Operator) -> None:
        await operator.until(lambda: bool(self.watcher.late))
        assert self.watcher.late == [("c", "goal-reached")]
        assert sorted(await operator.accepted()) == [(1, "a"), (1, "b")]
        await change_the_fleet(self.coordinator, self.store)


class AsynchronousScenario(ShortScenario):
    """An asynchronous run, in which a result may count in a later round than its task's.

    A round takes one result. The order of the devices is fixed, so that the result is, too:

        round 1   Devices a and b begin. Device a hands in, and begins again in round 2.
        round 2   Device b hands in its work of round 1, and begins again in round 3.
        round 3   Device a hands in its work of round 2. Device b comes after the end, and the
                  coordinator says so.
    """

    devices = "ab"
    spec = RunSpec(
        Recipe(MODEL, _NORMALISATION, rounds=3, seed=7),
        RoundPolicy(
            minimum_devices=1,
            deadline_seconds=600.0,
            lease_seconds=PATIENCE_SECONDS,
            asynchronous=Asynchronous(buffer_size=1),
        ),
    )
    after: ClassVar = {("a", 1): ("b", 1), ("b", 1): ("a", 2), ("a", 2): ("b", 3)}
    """Each device hands in its work of a round only after another device began its round."""

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        super().__init__(folder, coordinator, store)
        self._begun = {begun: threading.Event() for begun in (*self.after, *self.after.values())}
        self._completed = asyncio.Event()

    def before_work(self, device_id: str, work: LocalWork, progress: Progress) -> None:
        begun = device_id, work.round_number
        self._begun[begun].set()
        if begun in self.after:
            _wait(self._begun[self.after[begun]], progress)

    async def call(self, device_id: str, call: Call) -> object:
        if call.method == "submit_update" and device_id == "b" and self._begun["b", 3].is_set():
            await self._completed.wait()
        return await call()

    async def afterwards(self, operator: Operator) -> None:
        self._completed.set()
        await operator.until(lambda: bool(self.watcher.late))
        assert self.watcher.late == [("b", "completed")]
        assert await operator.accepted() == [(1, "a"), (1, "b"), (2, "a")]


class ResumedRunScenario(ShortScenario):
    """A resumed run gives another chance to devices that failed or were too slow.

    round 1   Device c gives its task up and leaves. Devices a and b are enough.
    round 2   Device b is too slow, and no device can replace it, so the run pauses. The operator
              resumes it. The coordinator accepts c again. Device b gets its task again.
    """

    devices = "abc"
    spec = RunSpec(
        Recipe(MODEL, _NORMALISATION, rounds=2, seed=15),
        RoundPolicy(
            minimum_devices=2,
            deadline_seconds=600.0,
            lease_seconds=PATIENCE_SECONDS,
            task_deadline_seconds=PATIENCE_SECONDS,
        ),
    )

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        super().__init__(folder, coordinator, store)
        self._c_is_gone = threading.Event()
        self._b_was_slow = threading.Event()

    def before_work(self, device_id: str, work: LocalWork, progress: Progress) -> None:
        match device_id, work.round_number:
            case "a", 1:
                _wait(self._c_is_gone, progress)  # else the coordinator would ask c in place of b
            case "b", 2 if not self._b_was_slow.is_set():
                try:
                    _wait(threading.Event(), progress)
                finally:
                    self._b_was_slow.set()
            case "c", _:
                raise InvalidInput(_GIVEN_UP)

    async def during_the_run(self, operator: Operator) -> None:
        await operator.until_seen("c", lambda device: device.last_failure == _GIVEN_UP)
        await self._devices["abc".index("c")].leave()
        self._c_is_gone.set()
        assert "longer than policy.task_deadline_seconds" in await operator.until_paused()
        await eventually(self._b_was_slow.is_set)  # b must not continue with its old task
        await operator.resume()


class PausedRunsScenario(ShortScenario):
    """An operator pauses runs at any time, cancels a paused run, and deletes a completed one.

    The other run begins when both devices work in round 1 of this run:

        round 1   Device a hands in, and begins a task of the other run. Device b is still busy.
                  The operator pauses the other run, resumes it, pauses it again and cancels it.
                  Device b hands in.
        round 2   The operator pauses the run when its last model exists but is not recorded. The
                  run completes, unless the coordinator dies before: then it stays paused, and the
                  operator resumes it and repeats the pause.
        after     The operator deletes the run.
    """

    devices = "ab"
    spec = RunSpec(
        Recipe(MODEL, _NORMALISATION, rounds=2, seed=17),
        RoundPolicy(minimum_devices=2, deadline_seconds=600.0, lease_seconds=PATIENCE_SECONDS),
    )
    _other = replace(spec, recipe=replace(spec.recipe, seed=19))

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        super().__init__(folder, coordinator, store)
        self._hold = held(folder, "RunRecords.complete_round")
        self._begun: set[tuple[str, int]] = set()
        self._other_is_begun = threading.Event()
        self._may_end = {
            1: {device_id: threading.Event() for device_id in "ab"},
            2: {"a": threading.Event()},
        }

    def before_work(self, device_id: str, work: LocalWork, progress: Progress) -> None:
        if work.recipe.seed == self._other.recipe.seed:
            self._other_is_begun.set()
            _wait(threading.Event(), progress)
        self._begun.add((device_id, work.round_number))
        if device_id in self._may_end[work.round_number]:
            _wait(self._may_end[work.round_number][device_id], progress)

    async def during_the_run(self, operator: Operator) -> None:
        await operator.until(lambda: self._begun == {("a", 1), ("b", 1)})
        await operator.create(self._other, "other")
        await operator.until_in(Phase.TRAINING, run_id="other")
        self._may_end[1]["a"].set()
        await operator.until(self._other_is_begun.is_set)
        await operator.pause("other")
        await operator.resume("other")
        await operator.pause("other")
        [funnel] = await operator.funnels("other")
        assert (funnel.assigned, funnel.taken, funnel.pending) == (2, 1, 2)
        await operator.cancel("other")
        self._may_end[1]["b"].set()
        await operator.until(lambda: ("a", 2) in self._begun)
        self._hold.touch()
        self._may_end[2]["a"].set()
        while not await self._completes_while_paused(operator):
            self._hold.touch()
            await operator.resume()

    async def _completes_while_paused(self, operator: Operator) -> bool:
        await operator.until_in(Phase.EVALUATING, round_number=2)  # too late to stop the run
        await operator.pause()
        self._hold.unlink()
        await eventually(partial(self._makes_no_progress, operator))
        # The run has ended, or a restarted coordinator holds it.
        return (await operator.run()).state is RunState.COMPLETED

    async def _makes_no_progress(self, operator: Operator) -> bool:
        return (await operator.run()).progress is None

    async def afterwards(self, operator: Operator) -> None:
        assert await operator.outline("other") == ["run-created", "run-cancelled"]
        await operator.delete("run")
        assert await operator.outline("run") == ["run-created", "run-completed", "run-deleted"]
