"""Files that a device keeps between starts."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_client.device.device_folder import DeviceFolder
from hfmds.domain.digest import digest_of
from hfmds.domain.learning import LeakageSummary, Traffic
from hfmds.domain.tasks import SynthesisReport, UpdateReport
from hfmds.errors import ConfigurationError, InvalidInput


@pytest.fixture
def state(tmp_path: Path) -> DeviceFolder:
    return DeviceFolder(tmp_path)


def memory(value: float) -> dict[str, np.ndarray]:
    return {"0": np.full(4, value, np.float32), "hidden.weight": np.full((2, 3), -value, "f4")}


def test_device_id_is_made_once(tmp_path: Path) -> None:
    first = DeviceFolder(tmp_path)
    first.close()
    again = DeviceFolder(tmp_path)
    assert again.device_id == first.device_id
    assert DeviceFolder(tmp_path / "other").device_id != first.device_id


def test_given_device_id_is_kept(tmp_path: Path) -> None:
    DeviceFolder(tmp_path, "kitchen").close()
    assert DeviceFolder(tmp_path).device_id == "kitchen"


def test_folder_of_another_device_is_refused(tmp_path: Path) -> None:
    DeviceFolder(tmp_path, "kitchen").close()
    with pytest.raises(ConfigurationError, match=r"'kitchen'.*HFMDS_DEVICE_ID 'cellar'"):
        DeviceFolder(tmp_path, "cellar")
    DeviceFolder(tmp_path, "kitchen")  # the refusal released the lock


def test_folder_in_use_is_refused(tmp_path: Path, state: DeviceFolder) -> None:
    with pytest.raises(ConfigurationError, match=r"in use.*HFMDS_STATE_DIR"):
        DeviceFolder(tmp_path)
    state.close()
    DeviceFolder(tmp_path).close()


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="HFMDS_STATE_DIR"):
        DeviceFolder(tmp_path / "file" / "state")


def test_memory_is_the_newest_before_the_round(state: DeviceFolder) -> None:
    assert state.memory("run", "synthesise", 5) == {}
    for round_number in (5, 9, 10):
        state.save_memory("run", "synthesise", round_number, memory(round_number))
    assert state.memory("run", "synthesise", 5) == {}
    for round_number, expected in ((6, 5), (9, 5), (10, 9), (11, 10), (99, 10)):
        stored = state.memory("run", "synthesise", round_number)
        assert list(stored) == ["0", "hidden.weight"]
        np.testing.assert_array_equal(stored["hidden.weight"], memory(expected)["hidden.weight"])


def test_memory_survives_a_restart(tmp_path: Path, state: DeviceFolder) -> None:
    state.save_memory("run", "train", 3, memory(3))
    state.close()
    stored = DeviceFolder(tmp_path).memory("run", "train", 4)
    np.testing.assert_array_equal(stored["0"], memory(3)["0"])


def test_kinds_of_tasks_have_memories_of_their_own(state: DeviceFolder) -> None:
    state.save_memory("run", "train", 1, memory(1))
    state.save_memory("run", "synthesise", 2, memory(2))
    assert state.memory("run", "train", 3)["0"][0] == 1
    assert state.memory("run", "synthesise", 3)["0"][0] == 2
    assert state.memory("run", "synthesise", 2) == {}


def test_an_empty_memory_leaves_no_file(tmp_path: Path, state: DeviceFolder) -> None:
    state.save_memory("run", "train", 1, {})
    assert state.memory("run", "train", 2) == {}
    assert not (tmp_path / "runs").exists()


def test_old_rounds_are_forgotten(state: DeviceFolder) -> None:
    for number in range(1, 20):
        state.save_memory("run", "train", number, memory(number))
    assert state.memory("run", "train", 17) == {}
    assert state.memory("run", "train", 18)["0"][0] == 17


def test_rounds_undone_by_a_restored_coordinator_are_forgotten(state: DeviceFolder) -> None:
    for number in range(1, 11):
        state.save_memory("run", "train", number, memory(number))
    for number in (6, 7):  # again
        state.save_memory("run", "train", number, memory(-number))
    assert state.memory("run", "train", 7)["0"][0] == -6
    assert state.memory("run", "train", 8)["0"][0] == -7
    assert state.memory("run", "train", 11)["0"][0] == -7


def kept_runs(folder: Path) -> set[str]:
    return {path.name for path in (folder / "runs").iterdir()}


def test_only_the_latest_runs_are_remembered(tmp_path: Path, state: DeviceFolder) -> None:
    for number in range(66):
        state.save_memory(f"run-{number}", "train", 1, memory(1))
        os.utime(tmp_path / "runs" / f"run-{number}", times=(0, time.time() + number))
    assert kept_runs(tmp_path) == {f"run-{number}" for number in range(2, 66)}


def test_a_run_untouched_for_a_month_is_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    now = time.time()
    state = DeviceFolder(tmp_path, clock=lambda: now)
    for name, days in (("paused", 29), ("over", 31)):
        state.save_memory(name, "train", 1, memory(1))
        os.utime(tmp_path / "runs" / name, times=(0, now - days * 24 * 3600))
    state.save_memory("new", "train", 1, memory(1))
    assert kept_runs(tmp_path) == {"paused", "new"}
    assert "forgetting run over" in caplog.text
    assert "paused" not in caplog.text


def test_a_folder_of_an_earlier_version_works(tmp_path: Path, state: DeviceFolder) -> None:
    state.save_memory("run", "synthesise", 2, memory(2))
    (tmp_path / "runs" / "run" / "prototypes-3").write_bytes(b"as they were kept once")
    (tmp_path / "runs" / "run" / "synthesise-3.old").write_bytes(b"a copy")
    assert state.memory("run", "synthesise", 4)["0"][0] == 2
    state.save_memory("run", "synthesise", 4, memory(4))


@pytest.mark.parametrize("run_id", ["../up", "", "a/b", ".hidden"])
def test_run_id_cannot_leave_the_folder(state: DeviceFolder, run_id: str) -> None:
    with pytest.raises(InvalidInput):
        state.save_memory(run_id, "train", 1, memory(1))


def test_damaged_memory_counts_as_none(
    tmp_path: Path, state: DeviceFolder, caplog: pytest.LogCaptureFixture
) -> None:
    state.save_memory("run", "train", 1, memory(1))
    path = tmp_path / "runs" / "run" / "train-1"
    path.write_bytes(b"nothing")
    assert state.memory("run", "train", 2) == {}
    assert str(path) in caplog.text
    state.save_memory("run", "train", 2, memory(2))
    assert state.memory("run", "train", 3)["0"][0] == 2


UPDATE = UpdateReport(digest_of(b"update"), 60, 0.25, Traffic(10, 0), 1.5)
SYNTHESIS = SynthesisReport(
    digest_of(b"batch"), 20, LeakageSummary(1, 2, 3, 4, 5, 6), 0.97, Traffic(10, 0), 2.5
)


UNMEASURED = replace(SYNTHESIS, synthetic_accuracy=None)


@pytest.mark.parametrize("report", [UPDATE, SYNTHESIS, UNMEASURED])
def test_result_comes_back_for_its_task_only(
    tmp_path: Path, state: DeviceFolder, report: UpdateReport | SynthesisReport
) -> None:
    assert state.result("t1") is None
    state.save_result("t1", report)
    state.close()
    again = DeviceFolder(tmp_path)
    assert again.result("t1") == report
    assert again.result("t2") is None


WRONG_DIGEST = {"update": {"sha256": "x", "size_bytes": 1}, "traffic": {}}


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}"]
    + [json.dumps({"task_id": "t1", "report": report}) for report in ({}, [], WRONG_DIGEST)],
)
def test_result_of_another_version_is_ignored(
    tmp_path: Path, state: DeviceFolder, content: str
) -> None:
    (tmp_path / "result.json").write_text(content)
    assert state.result("t1") is None


@pytest.mark.parametrize("content", [b"\xff\xfe", b"../other", b"two words"])
def test_the_error_of_a_damaged_id_names_the_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "device-id").write_bytes(content)
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        DeviceFolder(tmp_path)
