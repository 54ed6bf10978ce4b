"""Who is refused, and that what is over is forgotten."""

from __future__ import annotations

import pytest

from hfmds.errors import Unavailable
from hfmds.service.limits.limits import Limits
from hfmds.service.limits.throttle import REASONS, Throttle, address_of

PEER = "ipv4:10.0.0.7:41234"


class Server:
    """A throttle and what it has refused."""

    def __init__(self, limits: Limits) -> None:
        self.reasons: list[str] = []
        self.throttle = Throttle("tester", limits, self.reasons.append)

    def answers(self, now: float, device: str = "", peer: str = PEER) -> bool:
        try:
            with self.throttle.call(peer, now) as turn:
                turn.of_device(device, now)
        except Unavailable:
            return False
        return True


def test_places_are_free_again_when_calls_are_over() -> None:
    server = Server(Limits(calls=2))
    with server.throttle.call(PEER, 0.0), server.throttle.call(PEER, 0.0):
        for _ in range(3):
            assert not server.answers(0.0)
    assert server.answers(0.0)
    assert server.reasons == ["calls"] * 3


def test_one_device_may_have_so_many_calls_open() -> None:
    server = Server(Limits(device_calls=1))
    with server.throttle.call(PEER, 0.0) as turn:
        turn.of_device("greedy", 0.0)
        turn.of_device("greedy", 0.0)  # the same call, known by its next message
        assert not server.answers(0.0, "greedy")
        assert server.answers(0.0, "other")
    assert server.answers(0.0, "greedy")
    assert server.reasons == ["device_calls"]
    assert not server.throttle._device_calls


def test_one_device_may_call_so_often_from_wherever() -> None:
    server = Server(Limits(device_calls_per_second=0.1))
    assert server.answers(0.0, "a", "ipv4:10.0.0.7:1")
    assert not server.answers(9.9, "a", "ipv4:10.0.0.8:1")
    assert server.answers(9.9, "b", "ipv4:10.0.0.8:1")
    assert server.answers(10.0, "a", "ipv4:10.0.0.8:1")
    assert server.reasons == ["device_rate"]


def test_an_address_that_calls_too_often_takes_nothing_from_others() -> None:
    server = Server(Limits(address_calls_per_second=0.1, calls_per_second=0.3))
    assert server.answers(0.0, peer="ipv4:10.0.0.7:1")
    assert not any(server.answers(0.0, peer=f"ipv4:10.0.0.7:{port}") for port in range(2, 100))
    assert server.answers(0.0, peer="ipv4:10.0.0.8:1")
    assert server.answers(0.0, peer="ipv4:10.0.0.9:1")
    assert not server.answers(0.0, peer="ipv4:10.0.0.10:1")
    assert server.reasons == ["address_rate"] * 98 + ["rate"]


def test_refused_callers_come_back_one_after_the_other() -> None:
    server = Server(Limits(calls=1))
    told: list[float | None] = []
    with server.throttle.call(PEER, 0.0):
        for port in range(3):
            with pytest.raises(Unavailable) as refusal, server.throttle.call(f"peer:{port}", 0.0):
                pass
            told.append(refusal.value.retry_after_seconds)
    assert told == pytest.approx([1.0, 1.005, 1.01])


def test_a_flood_does_not_send_others_away_for_long() -> None:
    server = Server(Limits(calls=1))
    with server.throttle.call(PEER, 0.0):
        for number in range(50_000):  # a thousand a second, where 200 are asked back in one
            assert not server.answers(number / 1000, peer=f"ipv4:10.0.0.{number % 250}:{number}")
        with pytest.raises(Unavailable) as refused, server.throttle.call(PEER, 50.0):
            pass
    assert refused.value.retry_after_seconds is not None
    assert refused.value.retry_after_seconds <= 120


def test_the_log_is_told_now_and_then_and_by_whom(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(Limits(device_calls_per_second=0.1, address_calls_per_second=0.7))
    answered = [server.answers(now, "greedy") for now in (0.0, 1.0, 2.0, 3.0, 11.0, 12.0)]
    assert answered == [True, False, False, False, True, False]
    assert [server.answers(12.0) for _ in range(8)] == [True] * 5 + [False] * 3
    told = [
        (record.__dict__["reason"], record.__dict__["calls"], record.__dict__["last_caller"])
        for record in caplog.records
    ]
    assert told == [
        ("device_rate", 1, "device greedy"),
        ("device_rate", 3, "device greedy"),
        ("address_rate", 1, "10.0.0.7"),
    ]


def test_ten_thousand_devices_that_wake_up_at_once_behind_one_address_are_all_served() -> None:
    """Then they come as they are asked to, a hundred per second."""
    server = Server(Limits())
    for i in range(10_000):
        assert server.answers(0.0, f"device-{i}")
    for i in range(10_000):
        assert server.answers(5.0 + i / 100, f"device-{i}")
    assert not server.reasons


def test_a_device_that_does_a_whole_task_at_once_is_never_refused() -> None:
    server = Server(Limits())
    for second in range(60):  # check-in, downloads, uploads and what is submitted, again and again
        assert all(server.answers(float(second), "device") for _ in range(50))


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:41234", "10.0.0.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:41234", "2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:41234", "fe80::/64"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:41234", "10.0.0.7"),
        ("ipv6:%5B::1%5D:41234", "::/64"),
        ("unix:/run/socket:", "/run/socket"),
        ("", "unknown"),
    ],
)
def test_the_address_of_a_caller(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_every_reason_has_its_name() -> None:
    assert len(set(REASONS)) == len(REASONS) == 6
