"""Tokens of devices and people: creation, list, end, and storage as hashes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from hfmds.domain.administration.fleet import (
    AdminTerms,
    EnrolmentTerms,
    NewToken,
    Role,
    TokenRecord,
)
from hfmds.errors import Conflict, InvalidInput, NotFound, WrongState
from hfmds.pki.token_text import Token, TokenKind, new_token
from hfmds.service.security.identity import Identity, Kind
from tests.coordinator.identity.registry_office import DAY, OLGA, START, Office, new


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


@pytest.mark.parametrize("role", list(Role))
def test_an_admin_token_identifies_its_person(office: Office, role: Role) -> None:
    token = office.admin(role, "vera")
    assert office.tokens.admin(token.text) == Identity(Kind[role.name], "vera")


def test_wrong_old_and_revoked_admin_tokens_identify_no_one(office: Office) -> None:
    short, revoked, good = office.admin(seconds=60), office.admin(), office.admin()
    office.tokens.revoke(revoked.token_id, OLGA)
    office.tokens.revoke(revoked.token_id, OLGA)
    office.now += 60
    guess = Token(TokenKind.ADMIN, good.token_id, new_token(TokenKind.ADMIN).secret)
    enrolling = office.token()
    as_admin = Token(TokenKind.ADMIN, enrolling.token_id, enrolling.secret)
    for token in (short, revoked, guess, enrolling, as_admin, new_token(TokenKind.ADMIN)):
        assert office.tokens.admin(token.text) is None
    assert office.tokens.admin("") is None
    assert office.tokens.admin(good.text) is not None
    assert office.log().count("token-revoked") == 1


def test_the_same_token_again_is_answered_as_before(office: Office) -> None:
    token = new_token(TokenKind.ENROL)
    first = office.tokens.create(new(token, EnrolmentTerms(uses=3, prefix="cam-")), OLGA)
    office.now += 5
    assert office.tokens.create(new(token, EnrolmentTerms(uses=3, prefix="cam-")), OLGA) == first
    for other in (EnrolmentTerms(uses=4, prefix="cam-"), AdminTerms(Role.OWNER)):
        with pytest.raises(Conflict, match="other terms"):
            office.tokens.create(new(token, other), OLGA)
    assert office.log() == ["token-created"]


def test_a_revoked_token_is_not_made_again(office: Office) -> None:
    token, terms = new_token(TokenKind.ENROL), EnrolmentTerms()
    office.tokens.create(new(token, terms), OLGA)
    office.tokens.revoke(token.token_id, OLGA)
    with pytest.raises(WrongState, match=token.token_id):
        office.tokens.create(new(token, terms), OLGA)


def test_valid_tokens_are_listed_without_their_secrets(office: Office) -> None:
    token, old = office.admin(Role.OWNER, "olga"), office.token(seconds=1)
    office.tokens.revoke(office.token().token_id, OLGA)
    office.now += 1
    assert office.tokens.list() == [
        TokenRecord(
            token.token_id,
            "olga",
            datetime.fromtimestamp(START, UTC),
            OLGA,
            datetime.fromtimestamp(START + DAY, UTC),
            AdminTerms(Role.OWNER),
        )
    ]
    office.admin()  # creating a token deletes expired ones
    with pytest.raises(NotFound, match="hfmds pki tokens"):
        office.tokens.revoke(old.token_id, OLGA)


def test_no_secret_is_in_the_database(office: Office, tmp_path: Path) -> None:
    tokens = [office.admin(), office.token()]
    contents = b"".join(path.read_bytes() for path in tmp_path.glob("state.sqlite3*"))
    for token in tokens:
        assert token.secret_sha256 in contents
        assert token.secret.encode() not in contents


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"token_id": "A" * 12}, "12 lower-case hex digits"),
        ({"secret_sha256": b"short"}, "32 bytes"),
        ({"name": "vera w"}, "not an id"),
        ({"lifetime_seconds": 0.0}, "above 0"),
        ({"lifetime_seconds": 366 * DAY}, "a year"),
    ],
)
def test_malformed_tokens_are_refused(changes: dict[str, object], what: str) -> None:
    terms: dict[str, object] = {
        "token_id": "0" * 12,
        "secret_sha256": b"x" * 32,
        "name": "vera",
        "lifetime_seconds": DAY,
        "terms": AdminTerms(Role.VIEWER),
    }
    with pytest.raises(InvalidInput, match=what):
        NewToken(**{**terms, **changes})  # type: ignore[arg-type]


def test_contradictory_terms_are_refused() -> None:
    for uses, device_id, prefix in ((0, "", ""), (2, "camera", ""), (1, "camera", "cam-")):
        with pytest.raises(InvalidInput):
            EnrolmentTerms(uses, device_id, prefix)
    with pytest.raises(InvalidInput, match="not an id"):
        EnrolmentTerms(prefix="../")
    with pytest.raises(InvalidInput, match="100 characters"):
        EnrolmentTerms(prefix="a" * 101)
