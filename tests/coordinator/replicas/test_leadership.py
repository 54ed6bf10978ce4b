"""One of several coordinators on a PostgreSQL leads; a former leader is powerless."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, select, update

from coordinator.records.rounds import RoundRecords
from coordinator.records.runs import RunRecords
from coordinator.records.tables import LeadershipRow, RoundRow
from coordinator.replicas.leadership import Attempt, Deposed, LeaseRecords, Term
from hfmds.storage.database import read_session, write_session
from tests.coordinator.workbench import make_spec


def lease(engine: Engine, holder: str) -> LeaseRecords:
    return LeaseRecords(engine, holder, 3600.0, clock=lambda: 5.0)


def expire_lease(engine: Engine) -> None:
    with write_session(engine) as session:
        session.execute(update(LeadershipRow).values(expires_at=1.0))


def test_one_coordinator_holds_the_lease_until_it_expires(engine: Engine) -> None:
    first, second = lease(engine, "one"), lease(engine, "other")
    assert first.take() == Attempt(1, 3600.0, 5.0)
    refused = second.take()
    assert refused.epoch == 0
    assert 3500.0 < refused.seconds <= 3600.0
    expire_lease(engine)
    assert second.take().epoch == 2


def test_a_lease_can_be_renewed_until_another_coordinator_takes_it(engine: Engine) -> None:
    first, second = lease(engine, "one"), lease(engine, "other")
    first.take()
    expire_lease(engine)
    assert first.renew(1)
    assert second.take().epoch == 0
    expire_lease(engine)
    second.take()
    assert not first.renew(1)


def test_a_coordinator_can_follow_itself_immediately(engine: Engine) -> None:
    first = lease(engine, "one")
    assert [first.take().epoch, first.take().epoch] == [1, 2]
    assert not first.renew(1)


def test_a_released_lease_is_free_at_once(engine: Engine) -> None:
    first, second = lease(engine, "one"), lease(engine, "other")
    first.take()
    first.release(1)
    assert second.take().epoch == 2
    first.release(1)  # no longer its own term
    assert first.take().epoch == 0


def test_an_ended_term_allows_neither_writes_nor_reads(engine: Engine) -> None:
    RunRecords(engine).create("run", make_spec(), now=1.0)
    first = Term(engine, lease(engine, "one").take().epoch)
    RoundRecords(first.engine).begin("run", 1, now=1.0)
    expire_lease(engine)
    RoundRecords(first.engine).begin("run", 2, now=1.0)  # late, but no other coordinator leads
    second = Term(engine, lease(engine, "other").take().epoch)
    with pytest.raises(Deposed):
        RoundRecords(first.engine).begin("run", 3, now=1.0)
    with pytest.raises(Deposed):
        RunRecords(first.engine).state("run")
    RoundRecords(second.engine).begin("run", 4, now=1.0)
    second.over = True
    with pytest.raises(Deposed):
        RoundRecords(second.engine).begin("run", 5, now=1.0)
    with read_session(engine) as session:
        assert set(session.scalars(select(RoundRow.number))) == {1, 2, 4}
