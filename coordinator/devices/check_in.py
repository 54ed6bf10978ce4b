"""Lets devices ask for work and wait for it.

A device's call waits until work is assigned to it or its time is over. `wake` ends the wait of the
devices that may have work now. Check-ins that arrive at about the same time are answered together.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from coordinator.devices.assignments import Outcome, WorkFinder, WorkRequest
from coordinator.devices.registry import Registry
from coordinator.devices.request_batches import Batcher
from coordinator.devices.retry_times import RetryTimes
from coordinator.devices.wakeup import Wakeup, wake_all
from hfmds.domain.devices import DeviceProfile
from hfmds.domain.tasks import Assignment, Finished, RetryLater

_MAX_WAIT_SECONDS = 60.0
_MAX_LOOKING = 200  # check-ins that look for work at once
_NO_WORK = "no work for this device"


class CheckIns:
    """Answers devices that ask for work. Lives on the event loop."""

    def __init__(
        self,
        work: WorkFinder,
        registry: Registry,
        retry_times: RetryTimes,
        clock: Callable[[], float],
        max_waiting: int = 1000,
    ) -> None:
        """At most `max_waiting` check-ins wait for work; other devices ask again later."""
        self._work = work
        self._registry = registry
        self._retry_times = retry_times
        self._clock = clock
        self._max_waiting = max_waiting
        self._batches = Batcher[WorkRequest, Outcome](self._find, _MAX_LOOKING)
        self._looking = 0
        self.waiting = 0  # check-ins that wait for work now
        self._wakeups: defaultdict[str, set[Wakeup]] = defaultdict(set)  # by device
        self._wakeups_lock = threading.Lock()
        self._closing = False

    async def check_in(
        self,
        device_id: str,
        profile: DeviceProfile,
        wait_seconds: float,
        run_id: str,
        process: str = "",
    ) -> Assignment | RetryLater | Finished:
        """Wait for work for the device, at most `wait_seconds`."""
        quarantine = self._retry_times.quarantine(device_id)
        if quarantine is not None:
            return quarantine
        visit = self._registry.visit(device_id, profile, run_id, process)
        if self._looking >= _MAX_LOOKING:  # more than can be answered in time
            with visit:
                return self._retry_times.reject(device_id, "many devices are asking for work")
        with visit, self._wakeup_of(device_id) as wakeup:
            return await self._wait(WorkRequest(device_id, profile, run_id), wait_seconds, wakeup)

    def wake(self, devices: tuple[str, ...]) -> None:
        """Wake the check-ins of these devices, or all if none is named. Thread-safe."""
        with self._wakeups_lock:
            named = devices or tuple(self._wakeups)
            wakeups = [wakeup for device_id in named for wakeup in self._wakeups.get(device_id, ())]
        wake_all(wakeups)

    def close(self) -> None:
        """Send waiting devices away, so that the server can stop at once."""
        self._closing = True
        self.wake(())

    async def _wait(
        self, request: WorkRequest, wait_seconds: float, wakeup: Wakeup
    ) -> Assignment | RetryLater | Finished:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + min(max(wait_seconds, 0.0), _MAX_WAIT_SECONDS)
        while not self._closing:
            wakes = wakeup.wakes
            outcome = await self._look(request)
            if isinstance(outcome, str):
                return self._retry_times.reject(request.device_id, outcome)
            if outcome is not None:
                return outcome
            remaining = give_up_at - loop.time()
            if remaining <= 0:
                return self._retry_times.reject_after_wait(
                    request.device_id, _NO_WORK, wait_seconds
                )
            if self.waiting >= self._max_waiting:
                return self._retry_times.reject(request.device_id, _NO_WORK)
            self.waiting += 1
            try:
                await wakeup.wait_async(wakes, remaining)
            finally:
                self.waiting -= 1
        return self._retry_times.reject(request.device_id, "the coordinator is stopping")

    async def _look(self, request: WorkRequest) -> Outcome:
        self._looking += 1
        try:
            return await self._batches.ask(request)
        finally:
            self._looking -= 1

    def _find(self, requests: Sequence[WorkRequest]) -> list[Outcome | Exception]:
        """Answer the requests, and record the profiles of their devices."""
        outcomes = self._work.find(requests, self._clock())
        answered = zip(requests, outcomes, strict=True)
        profiles = {r.device_id: r.profile for r, o in answered if not isinstance(o, Exception)}
        self._registry.record(profiles)
        return outcomes

    @contextmanager
    def _wakeup_of(self, device_id: str) -> Iterator[Wakeup]:
        wakeup = Wakeup()
        with self._wakeups_lock:
            self._wakeups[device_id].add(wakeup)
        try:
            yield wakeup
        finally:
            with self._wakeups_lock:
                self._wakeups[device_id].discard(wakeup)
                if not self._wakeups[device_id]:
                    del self._wakeups[device_id]
