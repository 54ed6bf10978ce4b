"""Coordinators on one PostgreSQL exchange notices and the presence of devices."""

from __future__ import annotations

import queue
from dataclasses import replace

import pytest
from sqlalchemy import Engine

from coordinator.devices.registry import Registry
from coordinator.replicas.notices import Notices, SharedNotices, Topic
from coordinator.replicas.presence import Presence
from tests.coordinator.workbench import PROFILE

AWAY_SECONDS = 90.0
WAIT_SECONDS = 30.0


class Board:
    """A notices, and the notices about work that it received."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.received: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
        self.notices = SharedNotices(engine, name)
        self.notices.listen(Topic.WORK, self.received.put)
        self.notices.start()
        assert self.next() == ()  # a new connection wakes all devices

    def next(self) -> tuple[str, ...]:
        return self.received.get(timeout=WAIT_SECONDS)


def test_notices_reach_all_replicas_once(engine: Engine) -> None:
    first, second = Board(engine, "one"), Board(engine, "other")
    long_list = [f"device-{number:0100}" for number in range(100)]  # too long for one notice
    first.notices.announce(["a", "b"])
    first.notices.announce(long_list)
    assert second.next() == ("a", "b")
    assert [*second.next(), *second.next()] == long_list
    second.notices.announce(["c"])
    assert [first.next(), first.next(), first.next()] == [("a", "b"), tuple(long_list), ("c",)]
    assert second.next() == ("c",)  # its own notice
    first.notices.close()
    second.notices.close()
    assert first.received.empty()
    assert second.received.empty()


class Replica:
    """A coordinator's registry and presence, with a clock that the test moves."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.now = 1000.0
        self.arrivals = 0
        notices = Notices()
        notices.listen(Topic.RUN, self._count)
        self.registry = Registry(engine, notices, lambda: self.now, AWAY_SECONDS)
        self.presence = Presence(engine, name, self.registry, notices)

    def meet(self, device_id: str) -> None:
        with self.registry.visit(device_id, PROFILE, ""):
            self.registry.record({device_id: PROFILE})

    def present(self) -> list[str]:
        return list(self.registry.view("run").present)

    def _count(self, _: tuple[str, ...]) -> None:
        self.arrivals += 1


def exchange(*replicas: Replica) -> None:
    for replica in replicas:
        replica.presence.write()
    for replica in replicas:
        replica.presence.read()


@pytest.fixture
def pair(engine: Engine) -> tuple[Replica, Replica]:
    return Replica(engine, "one"), Replica(engine, "other")


def test_a_device_at_one_replica_is_present_for_all(pair: tuple[Replica, Replica]) -> None:
    first, second = pair
    rich = replace(PROFILE, free_memory_bytes=7)
    with second.registry.visit("b", rich, ""):
        second.registry.record({"b": rich})
        exchange(first, second)
        assert first.registry.view("run").present == {"b": rich}
        assert first.arrivals == 1
        assert [*first.registry.seen()] == ["b"]
    first.meet("a")
    exchange(first, second)
    assert first.present() == second.present() == ["a", "b"]


def test_presence_reported_by_a_lost_replica_expires(pair: tuple[Replica, Replica]) -> None:
    first, second = pair
    second.meet("b")
    exchange(first, second)
    first.now += AWAY_SECONDS
    assert first.present() == ["b"]
    first.now += 0.1
    assert first.present() == []


def test_a_disconnected_device_may_be_waiting_at_another_replica(
    pair: tuple[Replica, Replica],
) -> None:
    first, second = pair
    visit = first.registry.visit("a", PROFILE, "")
    visit.__enter__()
    first.registry.record({"a": PROFILE})
    exchange(first, second)
    second.now += 1.0
    second.meet("a")
    second.presence.write()
    assert not visit.__exit__(ConnectionError, ConnectionError(), None)
    exchange(first, second)
    assert first.present() == second.present() == ["a"]
    exchange(first, second)
    assert first.present() == second.present() == ["a"]


def test_a_device_that_says_goodbye_is_gone_for_all(pair: tuple[Replica, Replica]) -> None:
    first, second = pair
    first.meet("a")
    exchange(first, second)
    second.now += 1.0
    second.registry.note_goodbye("a")
    exchange(second, first)
    assert first.present() == second.present() == []


def test_nothing_is_written_while_nothing_changes(pair: tuple[Replica, Replica]) -> None:
    first, _ = pair
    first.meet("a")
    assert [sighting.device_id for sighting in first.registry.unshared()] == ["a"]
    first.presence.write()
    first.now += AWAY_SECONDS / 3
    first.registry.note_call("a")
    assert first.registry.unshared() == []
    first.now += 1.0
    first.registry.note_call("a")
    assert [sighting.device_id for sighting in first.registry.unshared()] == ["a"]
