"""What does it cost when a whole fleet wakes up and asks for work?

    .venv/bin/python benchmarks/check_in_load.py [--devices 10000] [--minutes 2] [--quick]

So many devices, each with a connection of its own, arrive through a simulated peak of a day: as
many per second as a cosine bump says, few at the edges and twice the mean in the middle. There is
no work for them. Each asks, is told when to ask again, does so, and stays until the peak is over.
They ask without waiting, so that the answer's delay is all the server's; or with `--wait-seconds`
they leave the call open, as the edge client does, and latency is the delay beyond that.

Printed as Markdown: latency of check-ins, outcomes, and what server and clients used. A refusal
with no time to come back at is what must not happen. If the clients' share of a processor is near
1, they were the bottleneck, and latencies are theirs: use more `--processes`.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import multiprocessing
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np
from no_op_devices import PROFILE, OwnConnection
from programs import MEGABYTE, Program, allow_open_files, programs, show, tell, usage, warn_if_busy

from hfmds.errors import HfmdsError, Unavailable
from hfmds.service.peer import Peer
from hfmds.wire.types import Assignment, Finished, RetryLater, UnreadableTask

_SPARE_FILES = 200  # what a process has open besides its connections
_REFUSED_PAUSE_SECONDS = 1.0
_NOT_AT_ONCE_SECONDS = 0.1  # as the edge client: "at once" must not make a loop spin


@dataclass(frozen=True, slots=True)
class Peak:
    """When devices come, and what they ask."""

    devices: int
    seconds: float
    wait_seconds: float

    def arrival(self, share: float) -> float:
        """When, in seconds from the beginning, this share of the devices has come."""
        # Arrivals are 1 - cos(2 pi t) per unit of time: the share that came is its integral.
        low, high = 0.0, 1.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            came = middle - math.sin(2 * math.pi * middle) / (2 * math.pi)
            low, high = (middle, high) if came < share else (low, middle)
        return low * self.seconds


@dataclass(slots=True)
class Found:
    """What one process of clients saw."""

    latencies: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    told_seconds: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0


async def device(peer: Peer, number: int, peak: Peak, begin: float, found: Found) -> None:
    """One device, from its arrival to the end of the peak."""
    end = begin + peak.seconds
    await asyncio.sleep(begin + peak.arrival((number + 0.5) / peak.devices) - time.monotonic())
    client = OwnConnection(peer, f"device-{number:05}")
    try:
        while (asked := time.monotonic()) < end:
            outcome, pause = await ask(client, peak.wait_seconds)
            took = time.monotonic() - asked
            found.latencies.append(max(0.0, took - peak.wait_seconds))
            found.outcomes[outcome] += 1
            if pause is None:
                pause = _REFUSED_PAUSE_SECONDS * random.random()  # noqa: S311 (no secret)
            else:
                found.told_seconds.append(pause)
            if time.monotonic() + pause >= end:
                return
            await asyncio.sleep(max(pause, _NOT_AT_ONCE_SECONDS))
    finally:
        await client.close()


async def ask(client: OwnConnection, wait_seconds: float) -> tuple[str, float | None]:
    """One check-in: what came of it, and when to ask again if that was said."""
    try:
        match await client.check_in(PROFILE, wait_seconds):
            case RetryLater(after_seconds):
                return "told when to ask again", after_seconds
            case Assignment() | UnreadableTask():
                return "given work", 0.0
            case Finished():
                return "told that there is no more work", math.inf
    except Unavailable as error:
        after_seconds = getattr(error, "retry_after_seconds", None)
        if after_seconds is not None:
            return "refused, with a time to ask again", after_seconds
        return "refused without a time", None
    except HfmdsError as error:
        return f"failed: {type(error).__name__}", None


def _serve(line: Connection, peer: Peer, peak: Peak, share: range, begin: float) -> None:
    async def all_devices() -> Found:
        found = Found()
        await asyncio.gather(*(device(peer, number, peak, begin, found) for number in share))
        return found

    before = usage(os.getpid()).cpu_seconds
    found = asyncio.run(all_devices())
    found.cpu_seconds = usage(os.getpid()).cpu_seconds - before
    line.send(found)


def measure(coordinator: Program, peak: Peak, processes: int) -> tuple[list[Found], list[float]]:
    """Let the peak come; what the clients found, and the server's CPU seconds by second."""
    context = multiprocessing.get_context("spawn")
    begin = time.monotonic() + 5.0  # when all processes have imported what they need
    lines = []
    for number in range(processes):
        line, far_end = context.Pipe(duplex=False)
        share = range(number, peak.devices, processes)
        arguments = (far_end, coordinator.peer, peak, share, begin)
        context.Process(target=_serve, args=arguments, daemon=True).start()
        far_end.close()  # our copy: else a dead child would never be noticed
        lines.append(line)
    by_second = []
    while time.monotonic() < begin:
        time.sleep(0.05)
    last = usage(coordinator.pid).cpu_seconds
    while time.monotonic() < begin + peak.seconds:
        time.sleep(1.0)
        now = usage(coordinator.pid).cpu_seconds
        by_second.append(now - last)
        last = now
        if len(by_second) % 10 == 0:
            tell(f"{len(by_second)} of {peak.seconds:.0f} s, server {by_second[-1]:.2f} CPU")
    return [line.recv() for line in lines], by_second


def print_table(peak: Peak, found: list[Found], by_second: list[float], server: Program) -> None:
    """The result as Markdown."""
    latencies = 1e3 * np.concatenate([each.latencies for each in found])
    told = np.concatenate([each.told_seconds for each in found])
    outcomes = sum((each.outcomes for each in found), Counter())
    seen = usage(server.pid)
    clients = [each.cpu_seconds / peak.seconds for each in found]
    rows = {
        "devices": f"{peak.devices}",
        "peak": f"{peak.seconds:.0f} s, calls wait {peak.wait_seconds:g} s",
        "check-ins": f"{len(latencies)}, {len(latencies) / peak.seconds:.0f} per second",
        **{f"of these {name}": f"{count}" for name, count in outcomes.items()},
        "latency p50 / p99 / most": " / ".join(
            f"{value:.1f} ms" for value in np.percentile(latencies, (50, 99, 100))
        ),
        "told to come back after, p5 / p50 / p95": " / ".join(
            f"{value:.1f} s" for value in np.percentile(told, (5, 50, 95))
        )
        if len(told)
        else "never",
        "server memory, now / most": f"{seen.rss_bytes / MEGABYTE:.0f} / "
        f"{seen.peak_rss_bytes / MEGABYTE:.0f} MB",
        "server CPU": f"{sum(by_second):.0f} s in all, {max(by_second):.2f} in the busiest second, "
        f"{1e3 * sum(by_second) / len(latencies):.1f} ms per check-in",
        "clients' share of a processor": ", ".join(f"{share:.2f}" for share in clients),
    }
    show("| | |\n|---|---|")
    for name, value in rows.items():
        show(f"| {name} | {value} |")


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--wait-seconds", type=float, default=0.0)
    parser.add_argument("--processes", type=int, default=4, help="of clients")
    parser.add_argument("--quick", action="store_true", help="seconds, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.devices, options.minutes, options.processes = 100, 0.15, 1
    warn_if_busy()
    allow_open_files(options.devices + _SPARE_FILES)
    peak = Peak(options.devices, 60 * options.minutes, options.wait_seconds)
    with programs() as ours:
        coordinator = ours.start_coordinator()
        found, by_second = measure(coordinator, peak, options.processes)
        print_table(peak, found, by_second, coordinator)


if __name__ == "__main__":
    main()
