"""Some devices wait in an open call; the others get a retry time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hfmds.domain.tasks import Assignment, RetryLater
from tests.coordinator.workbench import PROFILE, echo, make_spec, workbench
from tests.support.waiting import eventually


async def test_waiting_calls_are_bounded_and_other_devices_get_a_retry_time(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path, max_waiting=2) as bench:
        waiting = await bench.arrive("a", "b")
        await eventually(lambda: bench.check_ins.waiting == 2)
        sent_away = await bench.check_ins.check_in("c", PROFILE, 30.0, "")
        assert sent_away == RetryLater(0.5, "no work for this device")
        # The device is silent until its retry time, so it counts as present.
        await bench.create(make_spec(devices=3))
        a, b = await asyncio.gather(*waiting)
        await bench.do("a", a, echo)
        await bench.do("b", b, echo)
        work = await bench.check_ins.check_in("c", PROFILE, 30.0, "")
        assert isinstance(work, Assignment)
        assert work.round_number == 1


async def test_a_device_with_a_retry_time_is_present_until_then(tmp_path: Path) -> None:
    now = [1000.0]
    async with workbench(tmp_path, clock=lambda: now[0], away_seconds=10.0) as bench:
        registry = bench.app.registry
        with registry.visit("a", PROFILE, ""):
            registry.note_pause("a", 100.0)
        now[0] = 1109.0
        assert list(registry.view("").present) == ["a"]
        now[0] = 1111.0
        assert list(registry.view("").present) == []
