"""What a device keeps between its starts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edge_client.state import DeviceState
from hfmds.algorithm.types import LeakageSummary, Traffic
from hfmds.digest import digest_of
from hfmds.errors import ConfigurationError, InvalidInput
from hfmds.wire.types import SynthesisReport, UpdateReport


@pytest.fixture
def state(tmp_path: Path) -> DeviceState:
    return DeviceState(tmp_path)


def prototypes(value: float) -> dict[int, np.ndarray]:
    return {0: np.full(4, value, np.float32), 12: np.full(4, -value, np.float32)}


def test_device_id_is_made_once(tmp_path: Path) -> None:
    first = DeviceState(tmp_path)
    first.close()
    again = DeviceState(tmp_path)
    assert again.device_id == first.device_id
    assert DeviceState(tmp_path / "other").device_id != first.device_id


def test_given_device_id_is_kept(tmp_path: Path) -> None:
    DeviceState(tmp_path, "kitchen").close()
    assert DeviceState(tmp_path).device_id == "kitchen"


def test_folder_of_another_device_is_refused(tmp_path: Path) -> None:
    DeviceState(tmp_path, "kitchen").close()
    with pytest.raises(ConfigurationError, match=r"'kitchen'.*HFMDS_DEVICE_ID 'cellar'"):
        DeviceState(tmp_path, "cellar")
    DeviceState(tmp_path, "kitchen")  # the refusal has let go of the lock


def test_folder_in_use_is_refused(tmp_path: Path, state: DeviceState) -> None:
    with pytest.raises(ConfigurationError, match=r"in use.*HFMDS_STATE_DIR"):
        DeviceState(tmp_path)
    state.close()
    DeviceState(tmp_path).close()


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="HFMDS_STATE_DIR"):
        DeviceState(tmp_path / "file" / "state")


def test_previous_prototypes_are_the_newest_before_the_round(state: DeviceState) -> None:
    assert state.previous_prototypes("run", 5) == {}
    for round_number in (5, 10, 9):  # also when an earlier refresh is repeated
        state.save_prototypes("run", round_number, prototypes(round_number))
    assert state.previous_prototypes("run", 5) == {}
    for round_number, expected in ((6, 5), (9, 5), (10, 9), (11, 10), (99, 10)):
        previous = state.previous_prototypes("run", round_number)
        assert list(previous) == [0, 12]
        np.testing.assert_array_equal(previous[12], prototypes(expected)[12])


def test_old_refreshes_and_runs_are_forgotten(tmp_path: Path, state: DeviceState) -> None:
    for number in range(1, 20):
        state.save_prototypes("run", number, prototypes(number))
    assert state.previous_prototypes("run", 17) == {}
    assert state.previous_prototypes("run", 18).keys() == {0, 12}
    for number in range(20):
        state.save_prototypes(f"run-{number}", 1, prototypes(1))
    kept = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert kept == sorted(f"run-{number}" for number in range(12, 20))


@pytest.mark.parametrize("run_id", ["../up", "", "a/b", ".hidden"])
def test_run_id_cannot_leave_the_folder(state: DeviceState, run_id: str) -> None:
    with pytest.raises(InvalidInput):
        state.save_prototypes(run_id, 1, prototypes(1))


def test_damaged_prototypes_are_named(tmp_path: Path, state: DeviceState) -> None:
    state.save_prototypes("run", 1, prototypes(1))
    path = tmp_path / "runs" / "run" / "prototypes-1"
    path.write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match=str(path)):
        state.previous_prototypes("run", 2)


UPDATE = UpdateReport(digest_of(b"update"), 60, 0.25, Traffic(10, 0), 1.5)
SYNTHESIS = SynthesisReport(
    digest_of(b"batch"), 20, LeakageSummary(1, 2, 3, 4, 5, 6), 0.97, Traffic(10, 0), 2.5
)


@pytest.mark.parametrize("report", [UPDATE, SYNTHESIS])
def test_result_comes_back_for_its_task_only(
    tmp_path: Path, state: DeviceState, report: UpdateReport | SynthesisReport
) -> None:
    assert state.result("t1") is None
    state.save_result("t1", report)
    state.close()
    again = DeviceState(tmp_path)
    assert again.result("t1") == report
    assert again.result("t2") is None


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"task_id": "t1", "report": {}})])
def test_result_of_another_version_is_ignored(
    tmp_path: Path, state: DeviceState, content: str
) -> None:
    (tmp_path / "result.json").write_text(content)
    assert state.result("t1") is None
