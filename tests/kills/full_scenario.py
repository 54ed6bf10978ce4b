"""A run that passes through every transition of the coordinator and of the store.

Three rounds, a pool at the second; four devices, of which three are wanted. Whoever is killed on
the way, it must come to the same:

    before    the operator drains the coordinator and ends that, creates another run, for which
              there are too few devices, and cancels it
    round 1   a hands in rubbish, which is refused, before its update. b gives its task up; too few
              are left: the run is paused. The operator looks how far tasks came and resumes it,
              and b does the task
    round 2   a, b and c synthesise. While they train, d arrives; c gives up and leaves; d takes
              its place
    round 3   a, b and d train. The operator deletes the other run, and checks the logs of both
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
    patience,
    renew_first,
)

SECONDS = 60.0
"""How long the story may take; undisturbed it takes less than one."""

PATIENCE_SECONDS = 3.0
"""How long a coordinator that was started again gives devices to come back.

The setting HFMDS_DEVICE_AWAY_SECONDS has to be the same.
"""

_UNWELL = "device b is not well today"
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


class Story:
    """Told once, to programs at these addresses, by devices that keep their state in a folder."""

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
                meddler=self._clumsy if device_id == "a" else renew_first,
            )
            for device_id in "abcd"
        }
        self._folder = folder
        self._a_was_clumsy = False
        self._b_was_unwell = False
        self._c_is_training = threading.Event()
        self._d_is_here = threading.Event()

    async def tell(self) -> Outcome:
        """What the run came to."""
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
            assert _UNWELL in await operator.until_paused()
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
            assert await operator.told("other") == ["run-created", "run-cancelled", "run-deleted"]
            assert (await operator.told("run")).count("run-completed") == 1
            return outcome

    async def _clumsy(self, call: Call) -> Any:
        if call.method == "submit_update" and not self._a_was_clumsy:
            self._a_was_clumsy = True
            persist, blobs = patience("coordinator").call, FolderBlobs(self._folder / "rubbish")
            task_id, report, _ = call.args
            rubbish = replace(report, update=blobs.put_bytes(b"rubbish"))
            with pytest.raises(InvalidInput, match="update"):
                await persist(call.client.submit_update, task_id, rubbish, blobs)
        return await renew_first(call)

    def _of_b(self, work: LocalWork, progress: Progress) -> None:
        if work.round_number == 1 and not self._b_was_unwell:
            self._b_was_unwell = True
            raise InvalidInput(_UNWELL)

    def _of_c(self, work: LocalWork, progress: Progress) -> None:
        if work.round_number == 2 and work.pool is not None:
            self._c_is_training.set()
            while not self._d_is_here.wait(0.01):
                progress(1, 2)
            raise InvalidInput(_LEAVING)
