"""What a device says about itself, and when it may work."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_client.device.conditions import Conditions, probes
from edge_client.device.memory_limit import MemoryLimit
from edge_client.device.this_device import ThisDevice
from edge_client.device.traffic import TrafficBudget
from tests.edge_client.fakes import images
from tests.support.still_images import StillImages


class MovingImages(StillImages):
    """Images that count the looks."""

    looks = 0

    def look(self) -> None:
        MovingImages.looks += 1


@pytest.fixture
def budget(tmp_path: Path) -> TrafficBudget:
    return TrafficBudget(tmp_path / "traffic.json", 100)


def this_device(budget: TrafficBudget, *, charging: bool = True) -> ThisDevice:
    own, held_out = (
        MovingImages("own", images(0, 1, 2)),
        MovingImages("held out", images(0)),
    )
    conditions = Conditions(("charging",), probes(charging=charging, unmetered=False))
    memory = MemoryLimit(None, free_bytes=lambda: 1000)
    return ThisDevice(
        [own, held_out], memory, conditions, budget, engine="fake", labels=("room=a",)
    )


def test_a_profile_is_of_the_device_as_of_now(budget: TrafficBudget) -> None:
    looks = MovingImages.looks
    profile = this_device(budget).profile()
    assert MovingImages.looks == looks + 2
    assert (profile.samples, profile.engine, profile.labels) == (3, "fake", ("room=a",))
    assert (profile.free_memory_bytes, profile.charging, profile.unmetered) == (1000, True, False)


def test_the_owners_conditions_hold_for_work_that_was_begun_too(budget: TrafficBudget) -> None:
    unplugged = this_device(budget, charging=False)
    for working in (False, True):
        assert "charging" in (unplugged.refusal(working=working) or "")


def test_work_that_was_begun_may_use_up_the_traffic(budget: TrafficBudget) -> None:
    device = this_device(budget)
    assert device.refusal(working=False) is None
    budget.add(100)
    assert "HFMDS_TRAFFIC_BYTES_PER_DAY" in (device.refusal(working=False) or "")
    assert device.refusal(working=True) is None
