"""A run that passes through every kind of commit of the coordinator and of the store.

The run has three rounds, a pool in the second, and four devices, of which it wants three. A kill
of any program at any time must not change the result.

    before    The operator drains the coordinator and ends the drain. The operator creates another
              run, which has too few devices, and cancels it.
    round 1   Device a hands in invalid bytes, which the coordinator refuses, and then its update.
              Device b gives its task up. Too few devices remain, so the run pauses. The operator
              looks at the funnel and resumes the run. Device b does the task.
    round 2   Devices a, b and c synthesise. While they train, d arrives. Device c gives up and
              leaves. Device d takes its place.
    round 3   Devices a, b and d train. The operator deletes the other run and checks both logs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfmds.algorithm.local_work import LocalWork, Progress
from hfmds.domain.devices import DeviceState
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import Normalisation, Recipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import RunSpec, RunState
from hfmds.errors import InvalidInput
from hfmds.storage.blobs import FolderBlobs
from tests.support.operator import Operator, Outcome
from tests.support.scripted_devices import (
    MODEL,
    Call,
    Script,
    ScriptedDevice,
    do_nothing,
    renew_first,
    retrying,
)

SECONDS = 60.0
"""Time limit of a scenario, which takes less than one second without kills."""

PATIENCE_SECONDS = 3.0
"""Time that a restarted coordinator gives devices to come back.

The setting HFMDS_DEVICE_AWAY_SECONDS must have the same value.
"""

_GIVEN_UP = "device b gives its task up"
_LEAVING = "device c has to go"

_SPEC = RunSpec(
    Recipe(
        model=MODEL,
        normalisation=Normalisation((0.5,), (0.5,)),
        rounds=3,
        seed=11,
        method=Hfmds(every_rounds=2, first_round=2, samples_per_device=3, steps=1),
    ),
    RoundPolicy(minimum_devices=3, deadline_seconds=600.0, lease_seconds=PATIENCE_SECONDS),
)
_OTHER_SPEC = replace(_SPEC, policy=replace(_SPEC.policy, minimum_devices=100))


class FullScenario:
    """Runs once, with programs at these addresses. Devices keep their state in the folder."""

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        self._coordinator = coordinator
        scripts: Mapping[str, Script] = {"b": self._of_b, "c": self._of_c}
        self._devices = {
            device_id: ScriptedDevice(
                device_id,
                folder,
                coordinator,
                store,
                script=scripts.get(device_id, do_nothing),
                interceptor=self._invalid_first if device_id == "a" else renew_first,
            )
            for device_id in "abcd"
        }
        self._folder = folder
        self._a_was_refused = False
        self._b_was_unwell = False
        self._c_is_training = threading.Event()
        self._d_is_here = threading.Event()

    async def execute(self) -> Outcome:
        """Run the scenario, and return the results of the run."""
        async with (
            asyncio.timeout(SECONDS),
            Operator.of(self._coordinator) as operator,
            AsyncExitStack() as stack,
        ):
            await operator.drain(on=True)
            await operator.drain(on=False)
            for device_id in "abc":
                await stack.enter_async_context(self._devices[device_id].working())
            await operator.create(_OTHER_SPEC, "other")
            await operator.cancel("other")
            await operator.create(_SPEC)
            assert _GIVEN_UP in await operator.until_paused()
            assert [funnel.kind for funnel in await operator.funnels()] == ["train"]
            await operator.resume()
            await operator.until(self._c_is_training.is_set)
            await stack.enter_async_context(self._devices["d"].working())
            await operator.until_seen("d", lambda device: device.state is not DeviceState.AWAY)
            self._d_is_here.set()
            await operator.until_seen("c", lambda device: device.last_failure == _LEAVING)
            await self._devices["c"].leave()
            assert (await operator.run("other")).state is RunState.CANCELLED
            outcome = await operator.outcome()
            await operator.delete("other")
            assert await operator.outline("other") == [
                "run-created",
                "run-cancelled",
                "run-deleted",
            ]
            assert (await operator.outline("run")).count("run-completed") == 1
            return outcome

    async def _invalid_first(self, call: Call) -> Any:
        if call.method == "submit_update" and not self._a_was_refused:
            self._a_was_refused = True
            persist, blobs = retrying("coordinator").call, FolderBlobs(self._folder / "invalid")
            task_id, report, _ = call.args
            invalid = replace(report, update=blobs.put_bytes(b"invalid"))
            with pytest.raises(InvalidInput, match="update"):
                await persist(call.client.submit_update, task_id, invalid, blobs)
        return await renew_first(call)

    def _of_b(self, work: LocalWork, progress: Progress) -> None:
        if work.round_number == 1 and not self._b_was_unwell:
            self._b_was_unwell = True
            raise InvalidInput(_GIVEN_UP)

    def _of_c(self, work: LocalWork, progress: Progress) -> None:
        if work.round_number == 2 and work.pool is not None:
            self._c_is_training.set()
            while not self._d_is_here.wait(0.01):
                progress(1, 2)
            raise InvalidInput(_LEAVING)
