"""How devices stand with the fleet: metrics that are counted anew at every scrape.

Only numbers: which devices they are is for operators (`hfmds pki devices`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import ColumnElement, Engine, case, func, select

from coordinator.records.tables import CertificateRow, MemberRow
from hfmds.storage.database import reading

_LAST_SHARE = 0.2  # of its time: devices that are here ask for the next one long before


@dataclass(frozen=True, slots=True)
class HeadCount:
    """Devices by standing, and the newest certificates of those that are not revoked."""

    enrolled: int = 0
    quarantined: int = 0
    revoked: int = 0
    good: int = 0
    expiring: int = 0
    expired: int = 0


def head_count(engine: Engine, now: float) -> HeadCount:
    """Look into the fleet's books; blocks."""
    free = ~MemberRow.revoked & ~MemberRow.quarantined
    enrolled = _how_many(free & (MemberRow.enrolled_at > 0))
    device_id, issued_at = CertificateRow.device_id, CertificateRow.issued_at
    newest = select(device_id, func.max(issued_at).label("at")).group_by(device_id).subquery()
    left, lasts = CertificateRow.until - now, CertificateRow.until - issued_at
    certificates = (
        select(func.count(), _how_many(left <= 0), _how_many(left < _LAST_SHARE * lasts))
        .select_from(CertificateRow)
        .join(newest, (newest.c.device_id == device_id) & (newest.c.at == issued_at))
        .join(MemberRow, MemberRow.device_id == device_id)
        .where(~MemberRow.revoked)
    )
    with reading(engine) as session:
        members = session.execute(
            select(
                enrolled,
                _how_many(MemberRow.quarantined.is_(True)),
                _how_many(MemberRow.revoked.is_(True)),
            )
        ).one()
        there, ended, ending = session.execute(certificates).one()
    return HeadCount(*members, good=there - ending, expiring=ending - ended, expired=ended)


def _how_many(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


class Standing(Collector):
    """Devices by standing and their certificates, as they are at the time of the scrape."""

    def __init__(self, count: Callable[[], HeadCount]) -> None:
        self._count = count

    def describe(self) -> Iterable[Metric]:
        return self._families(HeadCount())

    def collect(self) -> Iterable[Metric]:
        return self._families(self._count())

    def _families(self, now: HeadCount) -> Iterable[Metric]:
        members = GaugeMetricFamily(
            "hfmds_coordinator_members",
            "Devices in the fleet's books by standing: enrolled, and neither in quarantine nor "
            "revoked; in quarantine; revoked.",
            labels=["standing"],
        )
        for standing in ("enrolled", "quarantined", "revoked"):
            members.add_metric([standing], getattr(now, standing))
        yield members
        certificates = GaugeMetricFamily(
            "hfmds_coordinator_member_certificates",
            "Devices that enrolled and are not revoked, by the state of their newest certificate "
            "(expiring: less than a fifth of its time is left, so its device did not ask for the "
            "next).",
            labels=["state"],
        )
        for state in ("good", "expiring", "expired"):
            certificates.add_metric([state], getattr(now, state))
        yield certificates
