"""How long is a round without learning, against plain copying?

    python -m benchmarks.coordinator.round_overhead [--devices 2 10 20 100] [--quick]

No-op devices (no_op_devices.py) with the paper's CNN, and a real coordinator on loopback. A round
lasts from its first task to the first task of the next round. In turns, the baselines move the same
bytes through plain gRPC to memory (loopback_copy.py), and the same with each upload hashed and
synced to disk, which is the cost of durability alone.

The first table has medians, and the processor time of both servers in a round, which says more than
the clock on a busy machine. The second table has a round's time as the devices see it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.shared.loopback_copy import LoopbackCopy, loopback_copy
from benchmarks.shared.no_op_devices import PAPER_CNN, TaskTimes, no_op_run, run_rounds
from benchmarks.shared.programs import (
    MEGABYTE,
    Programs,
    print_progress,
    print_result,
    programs,
    usage,
    warn_if_busy,
)
from hfmds.algorithm.models.building import initial_weights
from hfmds.wire.tensors import encode_weights

WARM_UP_ROUNDS = 2  # the first ones open files, connections and caches


@dataclass(slots=True)
class Seconds:
    """The results with one number of devices, a value per round."""

    ours: list[float] = field(default_factory=list)
    copying: list[float] = field(default_factory=list)
    durable: list[float] = field(default_factory=list)
    steps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    server_cpu: list[float] = field(default_factory=list)
    copying_cpu: list[float] = field(default_factory=list)

    def add(self, tasks: Sequence[TaskTimes]) -> None:
        """Add the times of a run."""
        rounds: defaultdict[int, list[TaskTimes]] = defaultdict(list)
        for task in tasks:
            rounds[task.round_number].append(task)
        for number in range(1 + WARM_UP_ROUNDS, max(rounds)):  # the last one has no next
            now, then = rounds[number], min(task.assigned for task in rounds[number + 1])
            first = min(task.assigned for task in now)
            last = max(task.accepted for task in now)
            self.ours.append(then - first)
            self.steps["first to last device has its task"].append(
                max(task.assigned for task in now) - first
            )
            for name, begin, end in (
                ("download of a device", "assigned", "downloaded"),
                ("making the update (device)", "downloaded", "made"),
                ("upload of a device, until accepted", "made", "accepted"),
            ):
                taken = [getattr(task, end) - getattr(task, begin) for task in now]
                self.steps[name].append(median(taken))
            self.steps["first task to last acceptance"].append(last - first)
            self.steps["last acceptance to the next round's first task"].append(then - last)


async def measure(
    ours: Programs, limit: LoopbackCopy, devices: Sequence[int], passes: int, rounds: int
) -> dict[int, Seconds]:
    """Measure all three ways in turns for each number of devices."""
    coordinator = ours.start_coordinator()
    await run_rounds(coordinator.peer, "first", no_op_run(1, 1))  # which has torch loaded
    seconds_by_devices = {count: Seconds() for count in devices}
    for number in range(passes):
        for count, seconds in seconds_by_devices.items():
            spec = no_op_run(count, WARM_UP_ROUNDS + rounds + 1)
            before = usage(coordinator.pid).cpu_seconds
            tasks = await run_rounds(coordinator.peer, f"n{count}-{number}", spec)
            cpu = usage(coordinator.pid).cpu_seconds - before
            seconds.server_cpu.append(cpu / spec.recipe.rounds)
            seconds.add(tasks)
            before = usage(limit.pid).cpu_seconds
            for _ in range(rounds):
                seconds.copying.append(await limit.round(count, durable=False))
            seconds.copying_cpu.append((usage(limit.pid).cpu_seconds - before) / rounds)
            for _ in range(rounds):
                seconds.durable.append(await limit.round(count, durable=True))
            print_progress(
                f"pass {number + 1}/{passes}, {count} devices: round {median(seconds.ours):.3f} s, "
                f"copying {median(seconds.copying):.3f} s"
            )
    coordinator.stop()
    return seconds_by_devices


def print_tables(seconds_by_devices: dict[int, Seconds], shown: int) -> None:
    """Print both tables as Markdown."""
    print_result(
        "| devices | round, s | plain gRPC copying, s | ratio | copying + sync, s | ratio "
        "| CPU of the coordinator, s | CPU of the copying server, s |"
    )
    print_result("|---|---|---|---|---|---|---|---|")
    for count, s in seconds_by_devices.items():
        ours, copying, durable = median(s.ours), median(s.copying), median(s.durable)
        print_result(
            f"| {count} | {ours:.3f} | {copying:.3f} | {ours / copying:.1f}x "
            f"| {durable:.3f} | {ours / durable:.1f}x | {median(s.server_cpu):.2f} "
            f"| {median(s.copying_cpu):.2f} |"
        )
    shown = shown if shown in seconds_by_devices else max(seconds_by_devices)
    print_result(f"\n| with {shown} devices, as they see it | median, ms |\n|---|---|")
    for name, values in seconds_by_devices[shown].steps.items():
        print_result(f"| {name} | {1e3 * median(values):.0f} |")


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 10, 20, 100])
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds of each pass")
    parser.add_argument("--steps-with", type=int, default=20, help="devices of table 2")
    parser.add_argument(
        "--quick", action="store_true", help="run seconds, only to see that it works"
    )
    options = parser.parse_args()
    if options.quick:
        options.devices, options.passes, options.rounds = [2, 10], 1, 3
        options.steps_with = 10
    warn_if_busy()
    size_bytes = len(encode_weights(initial_weights(PAPER_CNN, seed=0)))
    print_progress(f"the model has {size_bytes / MEGABYTE:.2f} MB")

    async def all_of_it() -> None:
        with loopback_copy(size_bytes) as limit, programs() as ours:
            seconds_by_devices = await measure(
                ours, limit, options.devices, options.passes, options.rounds
            )
        print_tables(seconds_by_devices, options.steps_with)

    asyncio.run(all_of_it())


if __name__ == "__main__":
    main()
