"""Revocation and quarantine, and their records."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.identity import members as module
from hfmds.domain.administration.fleet import Forgetting, Forgotten, Member
from hfmds.errors import LimitExceeded, NotAllowed
from hfmds.pki.device_key import DeviceKey
from hfmds.service.limits.limits import Limits
from hfmds.service.security.exclusions import Exclusions
from hfmds.v1.synthesis_store_pb2 import SetExclusionsRequest
from hfmds.wire.conversions.fleet_calls import MAX_REASON_BYTES, exclusions_message, reason_from
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
    for name in ("_MOST_REVOKED", "_MOST_SERIALS", "_MOST_QUARANTINED"):
        monkeypatch.setattr(module, name, 1)
    office.members.revoke("a", "", OLGA)
    office.members.revoke("a", "", OLGA)
    office.members.revoke_certificate("1", "", OLGA)
    office.members.quarantine("b", "", OLGA)
    with pytest.raises(LimitExceeded, match="hfmds pki forget --devices"):
        office.members.revoke("c", "", OLGA)
    with pytest.raises(LimitExceeded, match="--certificates"):
        office.members.revoke_certificate("2", "", OLGA)
    with pytest.raises(LimitExceeded, match="release or revoke others"):
        office.members.quarantine("c", "", OLGA)
    office.now += DAY  # the remedies work
    assert office.members.forget(Forgetting(DAY, DAY), OLGA) == Forgotten(1, 1)
    office.members.revoke("c", "", OLGA)
    office.members.revoke_certificate("2", "", OLGA)
    office.members.release("b", OLGA)
    office.members.quarantine("d", "", OLGA)


def test_the_longest_list_fits_into_one_message() -> None:
    def ids(most: int) -> list[str]:
        return [f"{n:05}".ljust(128, "d") for n in range(most)]

    serials = frozenset(f"{16**39 + n:x}" for n in range(module._MOST_SERIALS))
    longest = Exclusions(
        dict.fromkeys(ids(module._MOST_REVOKED), 2**40),
        serials,
        dict.fromkeys(ids(module._MOST_QUARANTINED), reason_from("x" * MAX_REASON_BYTES)),
    )
    request = SetExclusionsRequest(version=longest.version, exclusions=exclusions_message(longest))
    assert request.ByteSize() < Limits().message_bytes


# --- forgetting old records ---------------------------------------------------------------------


def test_devices_that_were_revoked_long_ago_are_forgotten(office: Office) -> None:
    office.members.revoke("gone", "stolen", OLGA)
    lost = DeviceKey.create()
    old = office.enrol(lost, office.token(device_id="back"))
    office.members.revoke("back", "stolen", OLGA)
    office.now += 1
    key = DeviceKey.create()
    new = office.enrol(key, office.token(device_id="back"))
    office.now += 2 * DAY
    office.members.revoke("recent", "stolen", OLGA)
    assert office.members.forget(Forgetting(devices_seconds=DAY), OLGA) == Forgotten(2, 0)
    assert office.members.exclusions() == Exclusions({"recent": int(office.now)})
    assert [member.device_id for member in office.members.list()] == ["back", "recent"]
    assert office.log()[-1] == "revocations-forgotten"
    # Revoked devices stay revoked, and returned devices stay members.
    with pytest.raises(NotAllowed, match="another key since"):
        office.renew(old, lost)
    with pytest.raises(NotAllowed, match="not known by this key"):
        office.enrol(lost, device_id="back")
    office.renew(new, key)
    assert office.members.forget(Forgetting(DAY, DAY), OLGA) == Forgotten(0, 0)
    assert office.log().count("revocations-forgotten") == 1


def test_devices_that_could_come_back_by_it_are_not_forgotten(office: Office) -> None:
    office.enrol(DeviceKey.create(), office.token(device_id="camera"))
    office.token(device_id="phone", seconds=3 * DAY)
    for device_id in ("camera", "phone"):
        office.members.revoke(device_id, "stolen", OLGA)
    at_once = Forgetting(devices_seconds=0.001)
    for later, forgotten in ((1.0, 0), (DAY, 0), (300.0, 1), (2 * DAY, 1)):
        office.now += later
        assert office.members.forget(at_once, OLGA) == Forgotten(forgotten, 0)


def test_a_device_with_an_unlisted_valid_certificate_is_not_forgotten(
    office: Office,
) -> None:
    office.enrol(DeviceKey.create(), office.token(device_id="camera"))
    last = office.enrol(DeviceKey.create(), office.token(device_id="camera"))
    office.members.revoke_certificate(certificate(last).serial, "", OLGA)
    office.members.revoke("camera", "stolen", OLGA)
    at_once = Forgetting(devices_seconds=0.001)
    for later, forgotten in ((DAY, 0), (300.0, 1)):
        office.now += later
        assert office.members.forget(at_once, OLGA) == Forgotten(forgotten, 0)


def test_expired_certificates_are_forgotten(office: Office) -> None:
    issued = certificate(office.enrol(DeviceKey.create(), office.token(device_id="camera")))
    office.members.revoke_certificate(issued.serial, "", OLGA)
    office.members.revoke_certificate("ab", "of a person", OLGA)
    office.now += DAY
    at_once = Forgetting(certificates_seconds=2 * DAY)
    assert office.members.forget(at_once, OLGA) == Forgotten(0, 0)
    office.members.revoke_certificate("cd", "", OLGA)
    assert office.members.exclusions().serials == {issued.serial, "ab", "cd"}
    office.now += 300.0  # by every server's clock
    office.members.revoke_certificate("ef", "", OLGA)
    assert office.members.exclusions().serials == {"ab", "cd", "ef"}
    half_a_day = Forgetting(certificates_seconds=DAY / 2)
    assert office.members.forget(half_a_day, OLGA) == Forgotten(0, 1)
    assert office.members.exclusions().serials == {"cd", "ef"}
