"""Measured costs of a computation, reported to the coordinator if the owner permits it."""

from pathlib import Path

import pytest

from edge_client.device.meter import Meter
from hfmds.domain.tasks import DeviceReport
from tests.edge_client.fakes import Device
from tests.edge_client.test_agent import Killed, with_policy


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_steps_time_and_processor_time_are_measured() -> None:
    clock, processor = Clock(), Clock()
    progress: list[tuple[int, int]] = []
    steps: list[float] = []
    with Meter(lambda *done: progress.append(done), steps.append, clock, processor) as meter:
        for seconds, done in ((2.0, 1), (1.0, 2), (6.0, 4), (0.5, 1)):  # then a second phase
            clock.now += seconds
            processor.now += 2 * seconds  # two threads
            meter.progress(done, 4)
        clock.now += 0.25  # time after the last step
    assert steps == [2.0, 1.0, 3.0, 0.5]
    assert progress == [(1, 4), (2, 4), (4, 4), (1, 4)]
    assert (meter.steps, meter.seconds, meter.cpu_seconds) == (5, 9.75, 19.0)


def test_an_error_of_the_progress_callback_ends_the_work() -> None:
    def abandon(done: int, steps: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError), Meter(abandon) as meter:
        meter.progress(1, 2)


async def test_each_result_reports_its_cost(tmp_path: Path) -> None:
    device = Device(tmp_path)
    await device.work(
        device.train_task(),
        with_policy(device.synthesise_task(), psnr_paired_max_db=11, leakage_action="drop"),
        device.evaluate_task(),
    )
    reports = {
        "train": device.coordinator.updates["t1"].device,
        "synthesise": device.coordinator.syntheses["s1"].device,
        "evaluate": device.coordinator.evaluations["e1"].device,
    }
    for kind, report in reports.items():
        assert report is not None, kind
        assert report.peak_memory_bytes > 1e6
        assert device.metric("cpu_seconds_total", kind=kind) == report.cpu_seconds >= 0
        assert device.metric("step_seconds_count", kind=kind) == report.steps
        assert device.metric("compute_seconds_count", kind=kind) == 1
    report = reports["synthesise"]
    assert report is not None
    assert report.withheld_samples == 1
    for real in ("paired", "nearest"):
        highest = device.metric("batch_ssim_ratio", real=real, statistic="max")
        assert highest == getattr(report, f"ssim_{real}_max")
        assert highest is not None


async def test_an_owner_can_forbid_cost_reports(tmp_path: Path) -> None:
    device = Device(tmp_path, tells_cost=False)
    await device.work(device.train_task(), device.synthesise_task())
    assert device.coordinator.updates["t1"].device is None
    assert device.coordinator.syntheses["s1"].device is None


async def test_a_result_from_before_a_crash_reports_its_cost(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.coordinator.errors["submit_update"] = [Killed()]  # type: ignore[list-item]
    with pytest.raises(Killed):
        await device.work(device.train_task())
    again = Device(tmp_path, device.coordinator, device.store)
    await again.work(device.train_task())
    report = again.coordinator.updates["t1"].device
    assert isinstance(report, DeviceReport)
    assert report.steps == device.metric("step_seconds_count", kind="train")
