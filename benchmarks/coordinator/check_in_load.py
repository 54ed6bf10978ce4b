"""What does it cost when a fleet wakes up and asks for work, and do devices come evenly?

    python -m benchmarks.coordinator.check_in_load [--devices 10000] [--quick] [--output FILE.png]

Each device has its own connection. All arrive within `--arriving-seconds`, along a peak
(checking_in.py), where a real fleet takes hours. The server sends them away at its usual rate, and
they keep asking for `--seconds` in all. A second run has devices with a fixed pause of their own:
the mean of the pauses that the server chose.

By default devices do not wait for work, so the delay of an answer is the server's. With
`--wait-seconds` they leave the call open as the edge client does, and latency is the delay beyond
that.

The table has latencies, outcomes, evenness, and the cost of server and clients. No device may be
refused without a time to return. If clients asked late or used a processor fully, they limited the
result: use more `--processes` or more cores.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from benchmarks.shared.checking_in import (
    REFUSED,
    REFUSED_WITH_TIME,
    SENT_AWAY,
    Observations,
    Peak,
    start,
)
from benchmarks.shared.programs import (
    MEGABYTE,
    StartedProgram,
    Usage,
    allow_open_files,
    print_progress,
    print_result,
    programs,
    usage,
    warn_if_busy,
)

mpl.use("Agg")
import matplotlib.pyplot as plt

_SPARE_FILES = 200  # what a process has open besides its connections
_START_SECONDS = 10.0  # until all processes have imported their modules
_TELL_EVERY_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Result:
    """The results of one peak."""

    peak: Peak
    observations: list[Observations]
    cpu_by_second: list[float]  # of the server
    before: Usage  # what the server had used before the peak
    after: Usage

    @property
    def asked_by_second(self) -> NDArray[np.int64]:
        """Count the check-ins that started in each second."""
        asked = np.concatenate([process.asked_at for process in self.observations])
        return np.bincount(asked.astype(int), minlength=int(self.peak.seconds))

    @property
    def peak_to_mean(self) -> float:
        """Return check-ins per second after all devices have arrived."""
        settled = self.asked_by_second[int(self.peak.arriving_seconds) : int(self.peak.seconds)]
        return float(settled.max() / settled.mean())

    @property
    def pauses(self) -> NDArray[np.float64]:
        return np.concatenate([process.pauses for process in self.observations])

    def rows(self) -> dict[str, str]:
        """Return the columns of the table by name."""
        latencies = 1e3 * np.concatenate([process.latencies for process in self.observations])
        behind = 1e3 * np.concatenate([process.behind for process in self.observations])
        outcomes = sum((process.outcomes for process in self.observations), Counter[str]())
        cpu = sum(self.cpu_by_second)
        others = {name: n for name, n in outcomes.items() if name not in _EXPECTED}
        shares = [process.cpu_seconds / self.peak.seconds for process in self.observations]
        return {
            "check-ins": f"{len(latencies)}",
            **{name: f"{outcomes[name]}" for name in _EXPECTED},
            "anything else": ", ".join(f"{name}: {n}" for name, n in others.items()) or "0",
            "latency p50 / p99 / most": _three(latencies, (50, 99, 100), "ms"),
            "told to come back after, p5 / p50 / p95": _three(self.pauses, (5, 50, 95), "s"),
            "check-ins per second, mean / most": f"{len(latencies) / self.peak.seconds:.0f} / "
            f"{self.asked_by_second.max()}",
            "maximum to mean per second, after all have arrived": f"{self.peak_to_mean:.2f}",
            "server memory before / after / most": " / ".join(
                f"{size / MEGABYTE:.0f}"
                for size in (
                    self.before.rss_bytes,
                    self.after.rss_bytes,
                    self.after.peak_rss_bytes,
                )
            )
            + " MB",
            "server CPU": f"{cpu:.0f} s, {max(self.cpu_by_second):.2f} in the busiest second, "
            f"{1e3 * cpu / len(latencies):.1f} ms per check-in",
            "clients' share of a processor": ", ".join(f"{share:.2f}" for share in shares),
            "clients asked too late by, p50 / p99 / most": _three(behind, (50, 99, 100), "ms"),
        }


_EXPECTED = (SENT_AWAY, REFUSED_WITH_TIME, REFUSED)


def _three(values: NDArray[np.float64], percentiles: tuple[int, ...], unit: str) -> str:
    if not len(values):
        return ""
    return " / ".join(f"{value:.1f}" for value in np.percentile(values, percentiles)) + f" {unit}"


def measure(coordinator: StartedProgram, peak: Peak, processes: int) -> Result:
    """Run one peak and collect its results."""
    begin = time.monotonic() + _START_SECONDS
    pipes = start(coordinator.peer, peak, processes, begin)
    time.sleep(_START_SECONDS)
    before = last = usage(coordinator.pid)
    by_second: list[float] = []
    while time.monotonic() < begin + peak.seconds:
        time.sleep(1.0)
        now = usage(coordinator.pid)
        by_second.append(now.cpu_seconds - last.cpu_seconds)
        last = now
        if len(by_second) % _TELL_EVERY_SECONDS == 0:
            print_progress(
                f"{len(by_second)} of {peak.seconds:.0f} s, server {by_second[-1]:.2f} CPU"
            )
    observations = [pipe.recv() for pipe in pipes]
    for complaint, times in sum(
        (process.complaints for process in observations), Counter[str]()
    ).most_common(5):
        print_progress(f"{times} times: {complaint}")
    return Result(peak, observations, by_second, before, last)


def draw(results: dict[str, Result], path: Path) -> None:
    """Draw check-ins per second."""
    figure, axes = plt.subplots(figsize=(8, 3.5))
    for name, result in results.items():
        axes.plot(result.asked_by_second, label=name, linewidth=1.0)
    first = next(iter(results.values())).peak
    axes.axvline(first.arriving_seconds, color="grey", linestyle=":", linewidth=1.0)
    axes.set_title(
        f"{first.devices} devices that find no work; all have arrived at the dotted line"
    )
    axes.set_xlabel("seconds")
    axes.set_ylabel("check-ins per second")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def print_table(results: dict[str, Result]) -> None:
    """Format both results side by side as Markdown."""
    first = next(iter(results.values())).peak
    print_result(
        f"| {first.devices} devices | {' | '.join(results)} |\n|---|{'---|' * len(results)}"
    )
    columns = [result.rows() for result in results.values()]
    for name in columns[0]:
        print_result(f"| {name} | {' | '.join(column[name] for column in columns)} |")


def main() -> None:
    """Measure both ways, draw them and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--arriving-seconds", type=float, default=90.0)
    parser.add_argument("--seconds", type=float, default=240.0, help="seconds of the run in all")
    parser.add_argument("--wait-seconds", type=float, default=0.0)
    parser.add_argument("--processes", type=int, default=2, help="client processes")
    parser.add_argument("--output", type=Path, default=Path("check-ins.png"))
    parser.add_argument(
        "--quick", action="store_true", help="run seconds, only to see that it works"
    )
    options = parser.parse_args()
    settings: dict[str, str] = {}
    if options.quick:
        options.devices, options.processes = 200, 1
        options.arriving_seconds, options.seconds = 4.0, 20.0
        settings = {"check_ins_per_second": "25"}
    warn_if_busy()
    allow_open_files(options.devices + _SPARE_FILES)
    peak = Peak(options.devices, options.arriving_seconds, options.seconds, options.wait_seconds)
    results: dict[str, Result] = {}
    with programs() as ours:
        coordinator = ours.start_coordinator(**settings)
        steered = results["as they are told"] = measure(coordinator, peak, options.processes)
    own = replace(peak, own_pause_seconds=float(steered.pauses.mean()))
    with programs() as ours:
        name = f"every {own.own_pause_seconds:.0f} s"
        coordinator = ours.start_coordinator(**settings)
        results[name] = measure(coordinator, own, options.processes)
    draw(results, options.output)
    print_table(results)
    print_result(f"\nPicture: {options.output}")


if __name__ == "__main__":
    main()
