"""Conditions under which a device works."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from edge_client.device.conditions import Conditions, OthersAtWork, on_mains_power, probes
from hfmds.errors import ConfigurationError


def test_without_conditions_a_device_always_works() -> None:
    assert Conditions((), probes()).refusal() is None


def test_unmet_conditions_are_named() -> None:
    holds = {"charging": True, "unmetered": True}
    found = {name: lambda name=name: holds[name] for name in holds}
    both = Conditions(("charging", "unmetered"), found)
    assert both.refusal() is None
    holds["unmetered"] = False
    assert both.refusal() == "the device is not unmetered (HFMDS_ONLY_WHEN)"
    holds["charging"] = False
    assert both.refusal() == "the device is not charging and not unmetered (HFMDS_ONLY_WHEN)"


def test_unmeasurable_conditions_are_refused_at_start() -> None:
    with pytest.raises(ConfigurationError, match=r"HFMDS_CONDITION_COMMAND.*HFMDS_UNMETERED"):
        Conditions(("unmetered",), probes())
    assert Conditions(("unmetered",), probes(unmetered=True)).refusal() is None
    assert Conditions(("charging",), probes(charging=False)).refusal() is not None


def test_the_command_of_the_owner_decides(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = (
        "import sys, pathlib; sys.exit(int(pathlib.Path(sys.argv[1], sys.argv[2]).read_text()))"
    )
    command = (sys.executable, "-S", "-c", script, str(tmp_path))
    for name, code in (("idle", "0"), ("charging", "1"), ("unmetered", "3")):
        (tmp_path / name).write_text(code)
    asked = Conditions((), probes(command, charging=True))
    assert [asked.holds(name) for name in ("idle", "charging")] == [True, False]
    assert caplog.text == ""
    assert asked.holds("unmetered") is False
    assert "unmetered ended with 3: no" in caplog.text


def test_a_missing_command_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="HFMDS_CONDITION_COMMAND"):
        Conditions(("idle",), probes([str(tmp_path / "nothing")]))


def test_a_command_that_disappears_makes_the_device_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = tmp_path / "command"
    command.symlink_to("/bin/true")
    asked = Conditions(("idle",), probes([str(command)]))
    assert asked.refusal() is None
    command.unlink()
    for _ in range(2):
        assert asked.refusal() == "the device is not idle (HFMDS_ONLY_WHEN)"
    assert caplog.text.count("HFMDS_CONDITION_COMMAND cannot be run") == 1  # one log line
    command.symlink_to("/bin/true")
    assert asked.refusal() is None


def supply(folder: Path, name: str, kind: str, online: str) -> None:
    (folder / name).mkdir()
    (folder / name / "type").write_text(f"{kind}\n")
    (folder / name / "online").write_text(f"{online}\n")


def test_linux_reports_mains_power(tmp_path: Path) -> None:
    assert on_mains_power(tmp_path / "nothing") is None
    supply(tmp_path, "BAT0", "Battery", "1")
    assert on_mains_power(tmp_path) is None
    supply(tmp_path, "AC", "Mains", "0")
    assert on_mains_power(tmp_path) is False
    supply(tmp_path, "usb", "USB", "1")
    assert on_mains_power(tmp_path) is True


class Processors:
    """One processor as Linux describes it. Only `sleep` lets time pass."""

    def __init__(self, folder: Path) -> None:
        self.stat = folder / "stat"
        self.busy = self.resting = self.own = 0.0
        self.load = 0.0  # load of other programs during sleeps
        self._tell()

    def sleep(self, seconds: float) -> None:
        self.spend(busy=seconds * self.load, resting=seconds * (1 - self.load))

    def spend(self, busy: float = 0.0, resting: float = 0.0, own: float = 0.0) -> None:
        self.busy, self.resting, self.own = self.busy + busy, self.resting + resting, self.own + own
        self._tell()

    def _tell(self) -> None:
        per_second = os.sysconf("SC_CLK_TCK")
        busy, resting = (round(x * per_second) for x in (self.busy + self.own, self.resting))
        self.stat.write_text(f"cpu  {busy} 0 0 {resting} 0 0 0 0 0 0\ncpu0 1 2 3\n")


def test_the_device_is_idle_when_other_programs_are(tmp_path: Path) -> None:
    machine = Processors(tmp_path)
    others = OthersAtWork(machine.stat, lambda: machine.own, machine.sleep)
    assert others.idle() is True
    machine.spend(own=60)  # the device's own work does not count
    assert others.idle() is True
    machine.spend(busy=30, resting=30)
    assert others.idle() is False
    machine.load = 0.9
    assert others.idle() is False  # a first call measures for a second
    assert OthersAtWork(tmp_path / "nothing").idle() is None
