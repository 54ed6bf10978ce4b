from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from hfmds.cli.connections import admin_client
from hfmds.cli.watch_run import FollowedRun, follow
from hfmds.domain.runs import RunState
from hfmds.errors import NotFound, WrongState
from tests.cli.fake_services import FakeCoordinator, serving
from tests.cli.values import a_round, a_run


async def heard(
    address: str, followed: FollowedRun, when_away: Callable[[], object] = lambda: None
) -> list[str]:
    """Records the state at each change: completed rounds, or an outage.

    When that is seen for the first time, `when_away` is called.
    """
    seen = []
    async with admin_client(address) as client:
        async for _ in follow(client, followed):
            if followed.away and "away" not in seen:
                when_away()
            seen.append("away" if followed.away else str([done.number for done in followed.rounds]))
    return seen


async def test_a_run_is_followed_to_its_end() -> None:
    coordinator = FakeCoordinator()
    coordinator.changes = [
        (a_run(), []),
        (a_run(completed_rounds=1), [a_round(1)]),
        (a_run(state=RunState.COMPLETED, completed_rounds=3), [a_round(2), a_round(3)]),
    ]
    followed = FollowedRun("x", a_run())
    with serving(coordinator) as address:
        assert await heard(address, followed) == ["[]", "[1]", "[1, 2, 3]"]
    followed.require_completed()
    assert followed.traffic.received_bytes == 6_000_000


async def test_a_restart_of_the_coordinator_is_survived() -> None:
    """A stream breaks after round 1, the coordinator is away, and another stream continues."""
    before, after = FakeCoordinator(), FakeCoordinator()
    before.changes = [(a_run(completed_rounds=1), [a_round(1)])]
    after.changes = [
        (a_run(state=RunState.COMPLETED, completed_rounds=2), [a_round(1), a_round(2)])
    ]
    followed = FollowedRun("x", a_run())
    with serving(before) as address:
        assert await _first_change(address, followed) == [1]
    with ExitStack() as second:
        start = partial(second.enter_context, serving(after, address))
        seen = await heard(address, followed, start)
    assert seen[0] == "away"
    assert seen[-1] == "[1, 2]"
    assert after.watched_after[-1] == 1
    assert [done.number for done in followed.rounds] == [1, 2]


async def _first_change(address: str, followed: FollowedRun) -> list[int]:
    async with admin_client(address) as client:
        async for _ in follow(client, followed):
            return [done.number for done in followed.rounds]
    return []


async def test_a_missing_run_is_not_awaited() -> None:
    class Forgetful(FakeCoordinator):
        def WatchRun(self, request: Any, context: Any) -> Iterator[Any]:
            self._find(request.run_id, context)
            yield

    with serving(Forgetful()) as address, pytest.raises(NotFound, match="there is no run run-1"):
        await heard(address, FollowedRun("x", a_run()))


async def test_a_stream_that_breaks_between_pages_of_rounds_resumes() -> None:
    ended = a_run(state=RunState.COMPLETED, completed_rounds=2)
    coordinator = FakeCoordinator()
    coordinator.changes = [(ended, [a_round(2)])]
    followed = FollowedRun("x", ended, [a_round(1)])
    with serving(coordinator) as address:
        assert await heard(address, followed) == ["[1, 2]"]
    assert coordinator.watched_after == [1]


async def test_a_paused_run_is_followed_until_it_resumes() -> None:
    coordinator = FakeCoordinator()
    coordinator.changes = [
        (a_run(state=RunState.PAUSED, state_reason="no space left"), []),
        (a_run(), []),
        (a_run(state=RunState.COMPLETED, completed_rounds=1), [a_round(1)]),
    ]
    followed = FollowedRun("x", a_run())
    with serving(coordinator) as address:
        assert await heard(address, followed) == ["[]", "[]", "[1]"]
    followed.require_completed()


def test_a_cancelled_run_is_an_error() -> None:
    followed = FollowedRun("x", a_run(state=RunState.CANCELLED))
    with pytest.raises(WrongState, match="run run-1 was cancelled"):
        followed.require_completed()


def test_only_a_run_that_the_coordinator_paused_is_stuck() -> None:
    followed = FollowedRun("HFMDS-FL", a_run(state=RunState.PAUSED))
    followed.require_not_stuck()  # the operator paused it and can resume it
    followed.run = a_run(state=RunState.PAUSED, state_reason="no space left")
    with pytest.raises(WrongState, match=r"run-1 .* was paused: no space left"):
        followed.require_not_stuck()
