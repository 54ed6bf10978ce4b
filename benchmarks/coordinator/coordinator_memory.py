"""Does the coordinator's memory stay flat over many rounds?

    python -m benchmarks.coordinator.coordinator_memory [--rounds 500] [--output FILE.png] [--quick]

One run with no-op devices (no_op_devices.py). After every round the script notes the coordinator's
resident memory and the time of the round, which would show growth on disk or in the database. It
draws both, and prints a table of the first and the last tenth after the warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
from itertools import pairwise
from pathlib import Path
from statistics import median

import matplotlib as mpl

from benchmarks.shared.no_op_devices import TaskTimes, no_op_run, run_rounds
from benchmarks.shared.programs import (
    MEGABYTE,
    print_progress,
    print_result,
    programs,
    usage,
    warn_if_busy,
)

mpl.use("Agg")
import matplotlib.pyplot as plt

WARM_UP_SHARE = 0.1  # allocators and caches fill


async def measure(devices: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return memory in MB after each round, and the seconds of each round."""
    memory: list[float] = []
    ended: list[float] = []
    with programs() as ours:
        coordinator = ours.start_coordinator()

        def note(times: TaskTimes) -> None:
            if times.round_number > len(memory):  # the first task of a new round
                memory.append(usage(coordinator.pid).rss_bytes / MEGABYTE)
                ended.append(times.assigned)
                if times.round_number % 50 == 0:
                    print_progress(f"round {times.round_number}: {memory[-1]:.0f} MB")

        await run_rounds(coordinator.peer, "memory", no_op_run(devices, rounds), note)
    return memory, [after - before for before, after in pairwise(ended)]


def draw(memory: list[float], seconds: list[float], path: Path) -> None:
    """Draw memory above and time per round below."""
    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(8, 5))
    upper.plot(range(1, len(memory) + 1), memory)
    upper.set_ylim(0, 1.2 * max(memory))
    upper.set_ylabel("resident memory, MB")
    upper.set_title("The coordinator over rounds without learning")
    lower.plot(range(2, len(seconds) + 2), [1e3 * s for s in seconds], linewidth=0.7)
    lower.set_ylim(0, 3e3 * median(seconds))
    lower.set_ylabel("time of a round, ms")
    lower.set_xlabel("round")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    """Measure, draw and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--output", type=Path, default=Path("coordinator-memory.png"))
    parser.add_argument(
        "--quick", action="store_true", help="run seconds, only to see that it works"
    )
    options = parser.parse_args()
    if options.quick:
        options.devices, options.rounds = 2, 30
    warn_if_busy()
    memory, seconds = asyncio.run(measure(options.devices, options.rounds))
    draw(memory, seconds, options.output)
    warm = int(WARM_UP_SHARE * options.rounds)
    tenth = max(1, options.rounds // 10)
    print_result(
        f"| {options.rounds} rounds of {options.devices} devices | memory, MB | round, ms |"
    )
    print_result("|---|---|---|")
    for name, part in (
        (f"rounds {warm + 1} to {warm + tenth}", slice(warm, warm + tenth)),
        (f"the last {tenth}", slice(-tenth, None)),
    ):
        print_result(f"| {name} | {median(memory[part]):.0f} | {1e3 * median(seconds[part]):.0f} |")
    print_result(f"\nPicture: {options.output}")


if __name__ == "__main__":
    main()
