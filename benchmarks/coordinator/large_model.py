"""How long is a round with a model of 100 MB, and how much memory does the coordinator need?

    python -m benchmarks.coordinator.large_model [--devices 4] [--quick]

Four no-op devices (no_op_devices.py) and a real coordinator on loopback, with the paper's CNN for
images so large that it has 25.7 million weights. In turns, the baseline moves the same bytes
through plain gRPC to memory (loopback_copy.py). Memory is the coordinator's peak during the rounds;
"above rest" is the peak less its memory after the start.
"""

from __future__ import annotations

import argparse
import asyncio
from statistics import median

from benchmarks.coordinator.round_overhead import WARM_UP_ROUNDS, Seconds
from benchmarks.shared.loopback_copy import loopback_copy
from benchmarks.shared.no_op_devices import no_op_run, run_rounds
from benchmarks.shared.programs import (
    MEGABYTE,
    forget_peak,
    print_progress,
    print_result,
    programs,
    usage,
    warn_if_busy,
)
from hfmds.domain.recipe import ModelSpec

LARGE = ModelSpec(height=124, width=124)
QUICK = ModelSpec(height=64, width=64)


async def measure(model: ModelSpec, devices: int, passes: int, rounds: int) -> None:
    """Measure and print the table."""
    seconds = Seconds()
    model_bytes = 0
    with programs() as ours:
        coordinator = ours.start_coordinator()
        rest = usage(coordinator.pid)
        forget_peak(coordinator.pid)
        spec = no_op_run(devices, WARM_UP_ROUNDS + rounds + 1, model)
        peak_bytes = 0
        for number in range(passes):
            tasks = await run_rounds(coordinator.peer, f"large-{number}", spec)
            seconds.add(tasks)
            peak_bytes = max(peak_bytes, usage(coordinator.pid).peak_rss_bytes)
            model_bytes = tasks[0].received_bytes
            with loopback_copy(model_bytes) as limit:
                for _ in range(rounds):
                    seconds.copying.append(await limit.round(devices, durable=False))
                    seconds.durable.append(await limit.round(devices, durable=True))
            print_progress(f"pass {number + 1}/{passes}: round {median(seconds.ours):.2f} s")
    ours_seconds, copying, durable = map(median, (seconds.ours, seconds.copying, seconds.durable))
    above_bytes = peak_bytes - rest.rss_bytes
    print_result(
        f"| {devices} devices, model of {model_bytes / MEGABYTE:.0f} MB | |\n|---|---|\n"
        f"| round | {ours_seconds:.2f} s |\n"
        f"| plain gRPC copying | {copying:.2f} s, ours {ours_seconds / copying:.1f}x |\n"
        f"| copying + sync | {durable:.2f} s, ours {ours_seconds / durable:.1f}x |\n"
        f"| coordinator memory, peak | {peak_bytes / MEGABYTE:.0f} MB |\n"
        f"| of that at rest | {rest.rss_bytes / MEGABYTE:.0f} MB |\n"
        f"| above rest, in models | {above_bytes / model_bytes:.1f} |"
    )
    print_result("\n| as devices see it | median, s |\n|---|---|")
    for name, values in seconds.steps.items():
        print_result(f"| {name} | {median(values):.2f} |")


def main() -> None:
    """Parse options, warn of a busy machine, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4, help="measured rounds of each pass")
    parser.add_argument(
        "--quick", action="store_true", help="run seconds, only to see that it works"
    )
    options = parser.parse_args()
    if options.quick:
        options.passes, options.rounds = 1, 1
    warn_if_busy()
    model = QUICK if options.quick else LARGE
    asyncio.run(measure(model, options.devices, options.passes, options.rounds))


if __name__ == "__main__":
    main()
