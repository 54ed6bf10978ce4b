"""Counts of members by standing, on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from coordinator.monitoring.live_counts import Counts, LiveCounts
from coordinator.monitoring.member_counts import MemberCounts, count_members
from hfmds.pki.device_key import DeviceKey
from hfmds.storage.database import opened_database
from tests.coordinator.identity.registry_office import DAY, OLGA, Office, new_issuer
from tests.support.databases import database_of


@pytest.mark.usefixtures("both_databases")
def test_devices_are_counted_by_standing_and_certificate_lifetime(
    tmp_path: Path,
) -> None:
    office = Office(tmp_path, issuer=new_issuer())
    token = office.token(uses=4, seconds=10 * DAY)
    with opened_database(database_of(tmp_path)) as engine:
        assert count_members(engine, office.now) == MemberCounts()
        keys = {name: DeviceKey.create() for name in ("camera", "phone", "stolen")}
        issued = {name: office.enrol(key, token, name) for name, key in keys.items()}
        office.members.revoke("stolen", "stolen", OLGA)
        office.members.quarantine("phone", "sends noise", OLGA)
        office.members.revoke("never here", "suspicious", OLGA)
        office.members.quarantine("other", "sends noise", OLGA)
        office.members.release("other", OLGA)  # another issuer signed its certificate
        expected = MemberCounts(enrolled=1, quarantined=1, revoked=2, good=2)
        assert count_members(engine, office.now) == expected
        office.now += 0.7 * DAY
        office.renew(issued["camera"], keys["camera"])
        office.now += 0.2 * DAY
        expected = MemberCounts(enrolled=1, quarantined=1, revoked=2, good=1, expiring=1)
        assert count_members(engine, office.now) == expected
        office.now += 0.2 * DAY
        expected = MemberCounts(enrolled=1, quarantined=1, revoked=2, good=1, expired=1)
        assert count_members(engine, office.now) == expected


def test_the_count_is_shown_without_names() -> None:
    registry = CollectorRegistry()
    counted = MemberCounts(enrolled=5, quarantined=1, revoked=2, good=3, expiring=2, expired=1)
    LiveCounts(lambda: Counts(members=counted), registry).refresh()
    prefix = "hfmds_coordinator_member"
    assert {
        state: registry.get_sample_value(f"{prefix}_certificates", {"state": state})
        for state in ("good", "expiring", "expired")
    } == {"good": 3, "expiring": 2, "expired": 1}
    assert {
        state: registry.get_sample_value(f"{prefix}s", {"standing": state})
        for state in ("enrolled", "quarantined", "revoked")
    } == {"enrolled": 5, "quarantined": 1, "revoked": 2}
