"""How soon does the coordinator go on after `kill -9`?

    python -m benchmarks.coordinator.recovery [--kills 10] [--quick]

A run of no-op devices (no_op_devices.py) is at work. The script kills the coordinator at a random
moment and starts it again on the same address and data. Devices ask every 20 ms. The table has the
median and longest seconds from the kill until the process is ready, until it answers a device's
next call, and until it accepts the next update. It also has the time in which Python imports the
coordinator.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import time
from collections import defaultdict
from statistics import median

from benchmarks.shared.no_op_devices import NoOpDevice, TaskTimes, no_op_run
from benchmarks.shared.programs import (
    Programs,
    StartedProgram,
    print_progress,
    print_result,
    programs,
    warn_if_busy,
)
from hfmds.wire.clients.admin_client import AdminClient

_ENDLESS_ROUNDS = 1_000_000
_WORK_SECONDS = (0.5, 1.5)  # undisturbed, before each kill
_POLL_SECONDS = 0.002
# Devices still read answers of the dead process; no new process is ready so soon.
_SETTLING_SECONDS = 0.1
_IMPORTS = 3


class Events:
    """Times of events by name."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def answered(self) -> None:
        """Note that a call was answered."""
        self.at["answered"] = time.monotonic()

    def accepted(self, times: TaskTimes) -> None:
        """Note that an update was accepted."""
        self.at["accepted"] = times.accepted

    async def next(self, name: str, after: float) -> float:
        """Return the first time of an event after a moment."""
        while self.at.get(name, 0.0) <= after:  # noqa: ASYNC110 (a poll is precise enough)
            await asyncio.sleep(_POLL_SECONDS)
        return self.at[name]


async def killed_once(
    ours: Programs, running: StartedProgram, events: Events
) -> tuple[StartedProgram, dict[str, float]]:
    """Kill and restart the coordinator; return it and the seconds until each event."""
    await asyncio.sleep(random.uniform(*_WORK_SECONDS))  # noqa: S311 (no secret)
    address = running.peer.address
    killed = time.monotonic()
    running.kill()
    again = ours.start_coordinator(listen=address, wait=False)
    await asyncio.sleep(_SETTLING_SECONDS)
    after = time.monotonic()

    async def ready() -> float:
        while not again.is_ready:  # noqa: ASYNC110 (another process makes it)
            await asyncio.sleep(_POLL_SECONDS)
        return time.monotonic()

    moments = {
        "process ready": ready(),
        "next call answered": events.next("answered", after),
        "next update accepted": events.next("accepted", after),
    }
    reached = await asyncio.gather(*moments.values())
    return again, {name: at - killed for name, at in zip(moments, reached, strict=True)}


def import_seconds() -> float:
    """Return the seconds in which Python imports the coordinator."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import coordinator.__main__"], check=True)
    return time.monotonic() - started


async def measure(devices: int, kills: int) -> None:
    """Kill several times and print the table."""
    times_by_event: defaultdict[str, list[float]] = defaultdict(list)
    times_by_event["importing the coordinator"] = [import_seconds() for _ in range(_IMPORTS)]
    events = Events()
    with programs() as ours:
        coordinator = ours.start_coordinator()
        admin = AdminClient(coordinator.peer)
        await admin.create_run(no_op_run(devices, _ENDLESS_ROUNDS), "endless")
        await admin.close()
        fleet = [
            NoOpDevice(coordinator.peer, number, events.accepted, events.answered)
            for number in range(devices)
        ]
        at_work = asyncio.gather(*(device.run("endless") for device in fleet))
        await events.next("accepted", 0.0)
        for number in range(kills):
            coordinator, seconds = await killed_once(ours, coordinator, events)
            for name, value in seconds.items():
                times_by_event[name].append(value)
            print_progress(
                f"{number + 1}/{kills}: answered after {seconds['next call answered']:.2f} s"
            )
            if at_work.done():  # only by an error: the run is endless
                at_work.result()
        at_work.cancel()
        await asyncio.gather(at_work, return_exceptions=True)
    print_result(f"| {devices} devices, {kills} kills | median, s | longest, s |\n|---|---|---|")
    for name, values in times_by_event.items():
        print_result(f"| {name} | {median(values):.2f} | {max(values):.2f} |")


def main() -> None:
    """Parse options, warn of a busy machine, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument(
        "--quick", action="store_true", help="run seconds, only to see that it works"
    )
    options = parser.parse_args()
    if options.quick:
        options.devices, options.kills = 2, 2
    warn_if_busy()
    asyncio.run(measure(options.devices, options.kills))


if __name__ == "__main__":
    main()
