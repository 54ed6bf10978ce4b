"""Who is shut out, and what the books say of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator import members as module
from hfmds.errors import LimitExceeded
from hfmds.pki.device_key import DeviceKey
from hfmds.service.exclusions import Exclusions
from hfmds.wire.fleet import Member
from tests.coordinator.registry_office import DAY, OLGA, START, Office, certificate, new_issuer

pytestmark = pytest.mark.usefixtures("both_databases")


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path, issuer=new_issuer())


def test_nobody_is_shut_out_at_first(office: Office) -> None:
    assert office.members.exclusions() == Exclusions()
    assert office.members.list() == []
    assert office.fleet.changes() == 0


def test_who_is_shut_out_is_told_with_all_that_servers_need(office: Office) -> None:
    office.members.revoke("camera", "stolen", OLGA)
    office.members.revoke_certificate("ab12", "left", OLGA)
    office.members.quarantine("phone", "sends noise", OLGA)
    assert office.members.exclusions() == Exclusions(
        {"camera": int(START)}, frozenset({"ab12"}), {"phone": "sends noise"}
    )
    assert office.fleet.changes() == 3
    kinds = ["device-revoked", "certificate-revoked", "device-quarantined"]
    assert office.log() == kinds


def test_a_quarantine_ends(office: Office) -> None:
    office.members.quarantine("phone", "sends noise", OLGA)
    office.members.release("phone", OLGA)
    office.members.release("phone", OLGA)
    office.members.release("never seen", OLGA)
    assert office.members.exclusions() == Exclusions()
    assert office.log() == ["device-quarantined", "device-released"]


def test_a_later_reason_takes_the_place_of_the_one_before(office: Office) -> None:
    for reason in ("first", "second", "second"):
        office.members.quarantine("phone", reason, OLGA)
    assert office.members.exclusions().quarantined == {"phone": "second"}
    assert office.log() == ["device-quarantined"] * 2


def test_a_revoked_device_is_not_let_out_by_a_quarantine(office: Office) -> None:
    office.members.quarantine("camera", "sends noise", OLGA)
    office.members.revoke("camera", "stolen", OLGA)
    office.members.quarantine("camera", "sends noise", OLGA)
    office.members.release("camera", OLGA)
    assert office.members.exclusions() == Exclusions({"camera": int(START)})


def test_the_books_have_every_device_with_its_newest_certificate(office: Office) -> None:
    token = office.token(device_id="camera")
    key = DeviceKey.create()
    first = office.enrol(key, token)
    office.now += DAY / 2
    newest = certificate(office.renew(first, key))
    office.members.revoke("phone", "stolen", OLGA)
    until = datetime.fromtimestamp(START + 1.5 * DAY, UTC)
    assert office.members.list() == [
        Member(
            "camera",
            token.token_id,
            datetime.fromtimestamp(START, UTC),
            newest.serial,
            until,
        ),
        Member(
            "phone",
            revoked_at=datetime.fromtimestamp(office.now, UTC),
            revoked=True,
            reason="stolen",
        ),
    ]


def test_more_than_can_be_told_are_refused(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MOST_REVOKED", "_MOST_SERIALS", "_MOST_QUARANTINED"):
        monkeypatch.setattr(module, name, 1)
    office.members.revoke("a", "", OLGA)
    office.members.revoke("a", "", OLGA)
    office.members.revoke_certificate("1", "", OLGA)
    office.members.quarantine("b", "", OLGA)
    with pytest.raises(LimitExceeded, match="replace the device issuer"):
        office.members.revoke("c", "", OLGA)
    with pytest.raises(LimitExceeded):
        office.members.revoke_certificate("2", "", OLGA)
    with pytest.raises(LimitExceeded):
        office.members.quarantine("c", "", OLGA)
