"""Revocation and quarantine, and their records."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.identity import members as module
from hfmds.domain.administration.fleet import Member
from hfmds.errors import LimitExceeded
from hfmds.pki.device_key import DeviceKey
from hfmds.service.limits.limits import Limits
from hfmds.service.security.exclusions import Exclusions
from hfmds.v1.synthesis_store_pb2 import SetExclusionsRequest
from hfmds.wire.conversions.fleet_calls import exclusions_message
from tests.coordinator.identity.registry_office import (
    DAY,
    OLGA,
    START,
    Office,
    certificate,
    new_issuer,
)

pytestmark = pytest.mark.usefixtures("both_databases")


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path, issuer=new_issuer())


def test_no_device_is_excluded_at_first(office: Office) -> None:
    assert office.members.exclusions() == Exclusions()
    assert office.members.list() == []
    assert office.fleet.changes() == 0


def test_exclusions_carry_everything_that_servers_need(office: Office) -> None:
    office.members.revoke("camera", "stolen", OLGA)
    office.members.revoke_certificate("ab12", "left", OLGA)
    office.members.quarantine("phone", "sends noise", OLGA)
    assert office.members.exclusions() == Exclusions(
        {"camera": int(START)}, frozenset({"ab12"}), {"phone": "sends noise"}
    )
    assert office.fleet.changes() == 3
    kinds = ["device-revoked", "certificate-revoked", "device-quarantined"]
    assert office.log() == kinds


def test_excluding_a_device_returns_whether_it_was_known(office: Office) -> None:
    office.enrol(DeviceKey.create(), office.token(device_id="camera"))
    for shut_out in (office.members.quarantine, office.members.revoke):
        assert shut_out("camera", "", OLGA)
        for _ in range(2):  # a misspelt id makes no difference
            assert not shut_out("kamera", "", OLGA)


def test_a_quarantine_ends(office: Office) -> None:
    office.members.quarantine("phone", "sends noise", OLGA)
    office.members.release("phone", OLGA)
    office.members.release("phone", OLGA)
    office.members.release("never seen", OLGA)
    assert office.members.exclusions() == Exclusions()
    assert office.log() == ["device-quarantined", "device-released"]


def test_a_later_reason_replaces_the_earlier_one(office: Office) -> None:
    for reason in ("first", "second", "second"):
        office.members.quarantine("phone", reason, OLGA)
    assert office.members.exclusions().quarantined == {"phone": "second"}
    assert office.log() == ["device-quarantined"] * 2


def test_ending_a_quarantine_does_not_admit_a_revoked_device(office: Office) -> None:
    office.members.quarantine("camera", "sends noise", OLGA)
    office.members.revoke("camera", "stolen", OLGA)
    office.members.quarantine("camera", "sends noise", OLGA)
    office.members.release("camera", OLGA)
    assert office.members.exclusions() == Exclusions({"camera": int(START)})


def test_members_are_listed_with_their_newest_certificate(office: Office) -> None:
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


def test_members_are_listed_in_pages(office: Office) -> None:
    for device in ("camera", "door", "phone"):
        office.enrol(DeviceKey.create(), office.token(device_id=device))
    everything = office.members.list()
    assert [member.device_id for member in everything] == ["camera", "door", "phone"]
    assert office.members.list("camera", 1) == everything[1:2]
    assert office.members.list("door", 5) == everything[2:]
    assert office.members.list("phone", 5) == []


def test_exclusions_beyond_the_message_limit_are_refused(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES_OF_DEVICES", 24)
    monkeypatch.setattr(module, "_MOST_BYTES", 30)
    for _ in range(2):
        office.members.revoke("a", "", OLGA)
    office.members.quarantine("b", "", OLGA)
    for exclude in (office.members.revoke, office.members.quarantine):
        with pytest.raises(LimitExceeded, match="release devices"):
            exclude("c", "", OLGA)
    office.members.revoke_certificate("1", "", OLGA)  # operators leave room for owners
    with pytest.raises(LimitExceeded, match="30 bytes"):
        office.members.revoke_certificate("123456789", "", OLGA)
    before = office.members.exclusions()
    assert before == Exclusions({"a": int(START)}, frozenset({"1"}), {"b": ""})
    office.members.release("b", OLGA)
    office.members.quarantine("d", "", OLGA)


def test_the_longest_list_fits_into_one_message() -> None:
    serials = frozenset(f"{16**39 + n:x}" for n in range(20_000))
    exclusions = Exclusions({"camera": 2**40}, serials, {"phone": "noisy"})
    message = exclusions_message(exclusions)
    request = SetExclusionsRequest(version=exclusions.version, exclusions=message)
    added = request.ByteSize() - message.ByteSize()
    assert module._MOST_BYTES + added < Limits().message_bytes
