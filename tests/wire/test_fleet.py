"""Tokens and members: what is not said, and what is refused; the pairs are in test_conversions."""

from __future__ import annotations

from typing import Any

import pytest

from hfmds.domain.administration.fleet import (
    AdminTerms,
    EnrolmentTerms,
    Member,
    NewToken,
    Role,
)
from hfmds.errors import InvalidInput
from hfmds.service.security.exclusions import Exclusions
from hfmds.v1 import fleet_pb2 as pb
from hfmds.wire.conversions.fleet_calls import (
    decode_exclusions,
    encode_exclusions,
    member_from,
    member_message,
    new_token_from,
    reason_from,
    require_serial,
)


def test_what_is_not_known_of_a_member_stays_absent() -> None:
    assert member_from(member_message(Member("phone"))) == Member("phone")


def test_who_is_shut_out_is_kept_as_bytes() -> None:
    excluded = Exclusions({"camera": 7}, frozenset({"ab"}), {"phone": ""})
    assert decode_exclusions(encode_exclusions(excluded)) == excluded
    assert decode_exclusions(b"") == Exclusions()


def enrolment(**changes: Any) -> pb.CreateEnrolmentTokenRequest:
    given: dict[str, Any] = {
        "token_id": "0" * 12,
        "secret_sha256": b"x" * 32,
        "name": "north",
        "lifetime_seconds": 60.0,
        "terms": pb.EnrolmentTerms(uses=1, prefix="", used=99),
    }
    return pb.CreateEnrolmentTokenRequest(**{**given, **changes})


def test_a_new_token_is_read_and_how_often_it_was_used_is_not_believed() -> None:
    expected = NewToken("0" * 12, b"x" * 32, "north", 60.0, EnrolmentTerms(uses=1))
    assert new_token_from(enrolment()) == expected
    admin = pb.CreateAdminTokenRequest(
        token_id="0" * 12,
        secret_sha256=b"x" * 32,
        name="vera",
        lifetime_seconds=60.0,
        terms=pb.AdminTerms(role="viewer"),
    )
    assert new_token_from(admin).terms == AdminTerms(Role.VIEWER)
    admin.terms.role = "root"
    with pytest.raises(InvalidInput, match="'root'"):
        new_token_from(admin)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"terms": None}, "terms is missing"),
        ({"lifetime_seconds": float("nan")}, "lifetime_seconds is nan"),
        ({"terms": pb.EnrolmentTerms(uses=1, device_id="")}, "device_id is empty"),
        ({"terms": pb.EnrolmentTerms(uses=-1)}, "for -1 devices"),
        ({"token_id": "x"}, "12 lower-case hex digits"),
    ],
)
def test_a_token_that_is_none_is_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        new_token_from(enrolment(**changes))


def test_serials_and_reasons_are_what_they_should_be() -> None:
    assert require_serial("ab12") == "ab12"
    assert reason_from("sends noise") == "sends noise"
    for serial in ("", "0ab", "AB", "g", "a" * 41):
        with pytest.raises(InvalidInput, match="hfmds pki devices"):
            require_serial(serial)
    for reason in ("x" * 201, "\u00e9" * 101, "two\nlines", "\x1b[2J"):
        with pytest.raises(InvalidInput, match="200 bytes"):
            reason_from(reason)
