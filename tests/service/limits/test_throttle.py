"""Which calls the throttle refuses, and that it forgets calls that are over."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from hfmds.errors import Unavailable
from hfmds.service.limits.limits import Limits
from hfmds.service.limits.throttle import REASONS, Throttle


class Server:
    """A throttle, a clock that the test moves, and the reasons of refusals."""

    def __init__(self, limits: Limits) -> None:
        self.now = 0.0
        self.reasons: list[str] = []
        self.throttle = Throttle("tester", limits, self.reasons.append, lambda: self.now)

    def answers(self, device_id: str = "") -> bool:
        """Make one short call, of a device if it has an id."""
        try:
            with ExitStack() as call:
                call.enter_context(self.throttle.call())
                if device_id:
                    call.enter_context(self.throttle.device_call(device_id))
        except Unavailable:
            return False
        return True


def test_places_are_free_again_when_calls_are_over() -> None:
    server = Server(Limits(calls=2))
    with server.throttle.call(), server.throttle.call():
        for _ in range(3):
            assert not server.answers()
    assert server.answers()
    assert server.reasons == ["calls"] * 3


def test_one_device_may_have_so_many_calls_open() -> None:
    server = Server(Limits(device_calls=1))
    with server.throttle.call(), server.throttle.device_call("greedy"):
        assert not server.answers("greedy")
        assert server.answers("other")
    assert server.answers("greedy")
    assert server.reasons == ["device_calls"]


def test_one_device_may_call_so_often() -> None:
    server = Server(Limits(device_calls_per_second=0.1))
    assert server.answers("a")
    server.now = 9.9
    assert not server.answers("a")
    assert server.answers("b")
    server.now = 10.0
    assert server.answers("a")
    assert server.reasons == ["device_rate"]


def test_all_callers_together_may_call_so_often() -> None:
    server = Server(Limits(calls_per_second=0.3))
    assert [server.answers() for _ in range(5)] == [True] * 3 + [False] * 2
    assert server.reasons == ["rate"] * 2


def test_refused_callers_come_back_spread_over_time() -> None:
    server = Server(Limits(calls=1))
    seconds = set()
    with server.throttle.call():
        for _ in range(100):
            with pytest.raises(Unavailable) as refusal, server.throttle.call():
                pass
            assert refusal.value.retry_after_seconds is not None
            seconds.add(refusal.value.retry_after_seconds)
    assert min(seconds) >= 1.0
    assert max(seconds) <= 20.0
    assert len(seconds) > 50


def test_ten_thousand_devices_that_wake_up_at_once_are_all_served() -> None:
    """Then a hundred per second come back, as the coordinator asks them to."""
    server = Server(Limits())
    for i in range(10_000):
        assert server.answers(f"device-{i}")
    for i in range(10_000):
        server.now = 5.0 + i / 100
        assert server.answers(f"device-{i}")
    assert not server.reasons


def test_a_device_that_does_a_task_at_once_is_never_refused() -> None:
    server = Server(Limits())
    for second in range(60):
        server.now = float(second)
        assert all(server.answers("device") for _ in range(50))


def test_every_reason_has_its_name() -> None:
    assert len(set(REASONS)) == len(REASONS) == 5
