"""Thousands of devices that only ask for work, with a connection each.

Devices arrive along a cosine bump: few at its edges and twice the mean in its middle. There is no
work. Each device asks again when the server says, or after a fixed pause for comparison.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import grpc

from benchmarks.shared.no_op_devices import PROFILE
from benchmarks.shared.programs import usage
from hfmds.domain.tasks import Assignment, Finished, RetryLater, UnreadableTask
from hfmds.errors import HfmdsError, Unavailable
from hfmds.service.client.channel import Backoff
from hfmds.service.client.peer import Peer
from hfmds.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from hfmds.wire.clients.coordinator_client import CoordinatorClient

SENT_AWAY = "told when to ask again"
REFUSED_WITH_TIME = "refused, with a time to ask again"
REFUSED = "refused without a time"

_BACKOFF = Backoff()  # the edge client's
_NOT_AT_ONCE_SECONDS = 0.1  # as the edge client: "at once" must not make a loop spin


class PatientConnection(CoordinatorClient):
    """A client with its own connection, which sees every refusal: gRPC retries nothing.

    It gives a connection as much time to come about as an edge client does: if thousands give up
    soon and try anew, nothing else is done.
    """

    def __init__(self, peer: Peer, device_id: str) -> None:
        super().__init__(peer, device_id)
        options = (
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
        )
        self._channel = grpc.aio.insecure_channel(peer.address, options=options)
        self._stub = CoordinatorServiceStub(self._channel)


@dataclass(frozen=True, slots=True)
class Peak:
    """The arrival of devices and the form of their calls."""

    devices: int
    arriving_seconds: float
    seconds: float  # in all, after which they go
    wait_seconds: float  # how long a call is left open for work
    own_pause_seconds: float | None = None  # between check-ins; None: as they are told

    def arrival(self, share: float) -> float:
        """Return the seconds from the start until this share of the devices has arrived."""
        # Arrivals are 1 - cos(2 pi t) per unit of time: the share that came is its integral.
        low, high = 0.0, 1.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            arrived = middle - math.sin(2 * math.pi * middle) / (2 * math.pi)
            low, high = (middle, high) if arrived < share else (low, middle)
        return low * self.arriving_seconds


@dataclass(slots=True)
class Observations:
    """The observations of one process of devices."""

    asked_at: list[float] = field(default_factory=list)  # seconds from the beginning
    latencies: list[float] = field(default_factory=list)  # beyond the time a call was left open
    behind: list[float] = field(default_factory=list)  # how late this process was to ask
    pauses: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    complaints: Counter[str] = field(default_factory=Counter)  # of refusals without a time
    cpu_seconds: float = 0.0


async def check_in_until_the_end(
    peer: Peer, number: int, peak: Peak, begin: float, observations: Observations
) -> None:
    """Run one device from its arrival to the end of the peak."""
    due = begin + peak.arrival((number + 0.5) / peak.devices)
    end = begin + peak.seconds
    await asyncio.sleep(due - time.monotonic())
    client = PatientConnection(peer, f"device-{number:05}")
    failures = 0  # in a row, without a word when to come back
    try:
        while due < end:
            asked = time.monotonic()
            outcome, wanted_pause = await _ask(client, peak.wait_seconds, observations.complaints)
            took = time.monotonic() - asked
            observations.asked_at.append(asked - begin)
            observations.behind.append(asked - due)
            observations.latencies.append(max(0.0, took - peak.wait_seconds))
            observations.outcomes[outcome] += 1
            if wanted_pause is None:
                failures += 1
                pause = random.uniform(0, _BACKOFF.ceiling(failures))  # noqa: S311 (no secret)
            else:
                failures = 0
                observations.pauses.append(wanted_pause)
                pause = max(wanted_pause, _NOT_AT_ONCE_SECONDS)
            if peak.own_pause_seconds is not None:
                pause = peak.own_pause_seconds
            due = time.monotonic() + pause
            await asyncio.sleep(min(due, end) - time.monotonic())
    finally:
        await client.close()


async def _ask(
    client: PatientConnection, wait_seconds: float, complaints: Counter[str]
) -> tuple[str, float | None]:
    """Check in once; return the outcome and the pause that the server asked for."""
    try:
        match await client.check_in(PROFILE, wait_seconds):
            case RetryLater(after_seconds):
                return SENT_AWAY, after_seconds
            case Assignment() | UnreadableTask():
                return "given work", 0.0
            case Finished():
                return "told that there is no more work", math.inf
    except Unavailable as error:
        if error.retry_after_seconds is not None:
            return REFUSED_WITH_TIME, error.retry_after_seconds
        complaints[str(error)] += 1
        return REFUSED, None
    except HfmdsError as error:
        return f"failed: {type(error).__name__}", None


def start(peer: Peer, peak: Peak, processes: int, begin: float) -> list[Connection]:
    """Start the devices in several processes; each sends its `Found` at the end."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for number in range(processes):
        pipe, far_end = context.Pipe(duplex=False)
        share = range(number, peak.devices, processes)
        arguments = (far_end, peer, peak, share, begin)
        context.Process(target=_run_devices, args=arguments, daemon=True).start()
        far_end.close()  # our copy: else a dead child would never be noticed
        pipes.append(pipe)
    return pipes


def _run_devices(pipe: Connection, peer: Peer, peak: Peak, share: range, begin: float) -> None:
    async def all_devices() -> Observations:
        observations = Observations()
        ours = (check_in_until_the_end(peer, number, peak, begin, observations) for number in share)
        await asyncio.gather(*ours)
        return observations

    before = usage(os.getpid()).cpu_seconds
    observations = asyncio.run(all_devices())
    observations.cpu_seconds = usage(os.getpid()).cpu_seconds - before
    pipe.send(observations)
