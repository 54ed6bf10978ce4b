"""Devices that share an id because someone copied a state folder to another machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from hfmds.wire.clients.coordinator_client import CoordinatorClient
from tests.coordinator.workbench import PROFILE, served, workbench

RUN_WITH_ONE_ID = "several devices run with the id a"


async def after(
    tmp_path: Path, processes: Iterable[str], later_seconds: float = 0.0
) -> dict[str, bool]:
    """Return whether devices "a" and "b" have twins after check-ins of "a" by these processes."""
    now = [1000.0]
    async with workbench(tmp_path, clock=lambda: now[0]) as bench:
        for process in processes:
            for device_id, own in (("a", process), ("b", "of-b")):
                await bench.check_ins.check_in(device_id, PROFILE, 0.0, "", own)
        now[0] += later_seconds
        return {device.device_id: device.has_twin for device in bench.devices()}


@pytest.mark.parametrize("processes", ["1212", "1122112212", "123412"])
async def test_twins_are_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, processes: str
) -> None:
    assert await after(tmp_path, processes) == {"a": True, "b": False}
    assert caplog.text.count(RUN_WITH_ONE_ID) == 1


@pytest.mark.parametrize(
    "processes",
    [
        "111222333",  # two restarts
        "1213",  # a late call of the first process
        ["1", "", "2", "", "3"],  # a version without process ids
        [str(number % 20) for number in range(40)],  # too many processes for twins
    ],
)
async def test_a_restarted_device_has_no_twin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, processes: Iterable[str]
) -> None:
    assert await after(tmp_path, processes) == {"a": False, "b": False}
    assert RUN_WITH_ONE_ID not in caplog.text


async def test_an_absent_twin_is_forgotten(tmp_path: Path) -> None:
    assert (await after(tmp_path, "1212", later_seconds=3500.0))["a"]
    assert not (await after(tmp_path, "1212", later_seconds=3600.0))["a"]


async def test_two_programs_with_one_id_are_detected_over_the_wire(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench, served(bench) as peer:
        first, second = CoordinatorClient(peer, "a"), CoordinatorClient(peer, "a")
        try:
            for client in (first, second, first):
                await client.reopen()  # a new certificate, the same process
                await client.check_in(PROFILE, 0.0)
                assert not bench.devices()[0].has_twin
            await second.check_in(PROFILE, 0.0)
            assert bench.devices()[0].has_twin
        finally:
            await first.close()
            await second.close()
