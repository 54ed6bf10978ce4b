"""Waiting times of a device between calls."""

from __future__ import annotations

import random

import pytest

from edge_client.retry import Retry
from hfmds.errors import HfmdsError, Unavailable
from hfmds.service.client.channel import Backoff, Peer

PEER = Peer("coordinator", "127.0.0.1:7401", "HFMDS_COORDINATOR")


async def pauses(*failures: HfmdsError) -> list[float]:
    """Return the waiting times with a peer that fails with these errors and then answers."""
    slept, remaining = [], list(failures)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def ask() -> str:
        if remaining:
            raise remaining.pop(0)
        return "answer"

    backoff = Backoff(first_seconds=1.0, max_seconds=4.0)
    patience = Retry(PEER, backoff, rng=random.Random(0), sleep=sleep)
    assert await patience.call(ask) == "answer"
    assert patience.trouble() is None
    return slept


async def test_waits_grow_up_to_a_limit() -> None:
    draws = random.Random(0)
    expected = [draws.uniform(0, ceiling) for ceiling in (1.0, 2.0, 4.0, 4.0)]
    assert await pauses(*[Unavailable("away")] * 4) == expected


async def test_the_wait_follows_the_retry_time_of_the_peer() -> None:
    failures = [Unavailable("full", retry_after_seconds=seconds) for seconds in (12.5, 0.25)]
    assert await pauses(*failures) == [12.5, 0.25]


async def test_absurd_retry_times_are_bounded() -> None:
    assert await pauses(Unavailable("full", retry_after_seconds=1e9)) == [3600.0]
    assert await pauses(Unavailable("full", retry_after_seconds=0.0)) == [0.1]  # no busy loop


@pytest.mark.parametrize("error", [Unavailable("away"), HfmdsError("a fault of the server")])
async def test_without_a_retry_time_the_device_backs_off(error: HfmdsError) -> None:
    assert await pauses(error) == [random.Random(0).uniform(0, 1.0)]
