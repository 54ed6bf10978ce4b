"""Coordinators on one PostgreSQL exchange notices and the presence of devices."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import Engine

from coordinator.devices.registry import Registry
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.tables import Base
from coordinator.replicas.notices import Notices, SharedNotices, Topic
from coordinator.replicas.presence import Presence
from hfmds.storage.database import opened_database
from tests.coordinator.workbench import PROFILE

AWAY_SECONDS = 90.0
WAIT_SECONDS = 30.0


@pytest.fixture
def engine(postgres_url: str) -> Iterator[Engine]:
    with opened_database(postgres_url) as engine:
        Base.metadata.create_all(engine)
        yield engine


class Board:
    """A notices, and the notices about work that it received."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.told: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
        self.notices = SharedNotices(engine, name)
        self.notices.listen(Topic.WORK, self.told.put)
        self.notices.start()
        assert self.next() == ()  # a new connection wakes all devices

    def next(self) -> tuple[str, ...]:
        return self.told.get(timeout=WAIT_SECONDS)


def test_notices_reach_all_replicas_once(engine: Engine) -> None:
    one, other = Board(engine, "one"), Board(engine, "other")
    many = [f"device-{number:0100}" for number in range(100)]  # too long for one notice
    one.notices.announce(["a", "b"])
    one.notices.announce(many)
    assert other.next() == ("a", "b")
    assert [*other.next(), *other.next()] == many
    other.notices.announce(["c"])
    assert [one.next(), one.next(), one.next()] == [("a", "b"), tuple(many), ("c",)]
    assert other.next() == ("c",)  # its own notice
    one.notices.close()
    other.notices.close()
    assert one.told.empty()
    assert other.told.empty()


class Replica:
    """A coordinator's registry and presence, with a clock that the test moves."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.now = 1000.0
        self.arrivals = 0
        self.registry = Registry(engine, TaskRecords(engine), lambda: self.now, AWAY_SECONDS)
        self.registry.on_arrival(self._count)
        self.presence = Presence(engine, name, self.registry, Notices())

    def meet(self, device_id: str) -> None:
        with self.registry.visit(device_id, PROFILE, ""):
            self.registry.record({device_id: PROFILE})

    def here(self) -> list[str]:
        return list(self.registry.view("run").present)

    def _count(self) -> None:
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
    one, other = pair
    rich = replace(PROFILE, free_memory_bytes=7)
    with other.registry.visit("b", rich, ""):
        other.registry.record({"b": rich})
        exchange(one, other)
        assert one.registry.view("run").present == {"b": rich}
        assert one.arrivals == 1
        assert [device.device_id for device in one.registry.list()] == ["b"]
    one.meet("a")
    exchange(one, other)
    assert one.here() == other.here() == ["a", "b"]


def test_presence_reported_by_a_lost_replica_expires(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    other.meet("b")
    exchange(one, other)
    one.now += AWAY_SECONDS
    assert one.here() == ["b"]
    one.now += 0.1
    assert one.here() == []


def test_a_disconnected_device_may_be_waiting_at_another_replica(
    pair: tuple[Replica, Replica],
) -> None:
    one, other = pair
    visit = one.registry.visit("a", PROFILE, "")
    visit.__enter__()
    one.registry.record({"a": PROFILE})
    exchange(one, other)
    other.now += 1.0
    other.meet("a")
    other.presence.write()
    assert not visit.__exit__(ConnectionError, ConnectionError(), None)
    exchange(one, other)
    assert one.here() == other.here() == ["a"]
    exchange(one, other)
    assert one.here() == other.here() == ["a"]


def test_a_device_that_says_goodbye_is_gone_for_all(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    one.meet("a")
    exchange(one, other)
    other.now += 1.0
    other.registry.note_goodbye("a")
    exchange(other, one)
    assert one.here() == other.here() == []


def test_nothing_is_written_while_nothing_changes(pair: tuple[Replica, Replica]) -> None:
    one, _ = pair
    one.meet("a")
    assert [sighting.device_id for sighting in one.registry.unshared()] == ["a"]
    one.presence.write()
    one.now += AWAY_SECONDS / 3
    one.registry.note_call("a")
    assert one.registry.unshared() == []
    one.now += 1.0
    one.registry.note_call("a")
    assert [sighting.device_id for sighting in one.registry.unshared()] == ["a"]
