"""Counts the fleet's members by standing, and their certificates by state.

Metrics show only these numbers. `hfmds pki devices` shows operators which devices they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Engine, case, func, select

from coordinator.records.tables import MemberRow
from hfmds.storage.database import read_session

_LAST_SHARE = 0.2  # of a certificate's time; a device that is present renews long before


@dataclass(frozen=True, slots=True)
class MemberCounts:
    """Devices by standing, and the newest certificates of those that are not revoked."""

    enrolled: int = 0
    quarantined: int = 0
    revoked: int = 0
    good: int = 0
    expiring: int = 0
    expired: int = 0


def count_members(engine: Engine, now: float) -> MemberCounts:
    """Count the members in the database."""
    free = ~MemberRow.revoked & ~MemberRow.quarantined
    members = select(
        _count_if(free & (MemberRow.enrolled_at > 0)),
        _count_if(MemberRow.quarantined.is_(True)),
        _count_if(MemberRow.revoked.is_(True)),
    )
    until = MemberRow.certified_until
    remaining, lifetime = until - now, until - MemberRow.certified_at
    certificates = select(
        func.count(), _count_if(remaining <= 0), _count_if(remaining < _LAST_SHARE * lifetime)
    ).where(~MemberRow.revoked, until > 0)
    with read_session(engine) as session:
        enrolled, quarantined, revoked = session.execute(members).one()
        total, expired, ending = session.execute(certificates).one()
    return MemberCounts(
        enrolled,
        quarantined,
        revoked,
        good=total - ending,
        expiring=ending - expired,
        expired=expired,
    )


def _count_if(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)
