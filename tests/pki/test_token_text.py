"""The text form of tokens."""

from __future__ import annotations

import hashlib

import pytest

from hfmds.pki.token_text import Token, TokenKind, new_token, parse_token


@pytest.mark.parametrize("kind", list(TokenKind))
def test_a_token_is_read_as_it_was_written(kind: TokenKind) -> None:
    token = new_token(kind)
    assert parse_token(token.text, kind) == token
    assert token.is_of(token.secret_sha256)
    assert not token.is_of(new_token(kind).secret_sha256)


def test_tokens_are_not_alike() -> None:
    assert len({new_token(TokenKind.ENROL).text for _ in range(100)}) == 100


def test_what_is_kept_of_a_secret_is_as_the_contract_says() -> None:
    token = Token(TokenKind.ENROL, "0" * 12, "ab" * 32)
    assert token.secret_sha256 == hashlib.sha256(b"ab" * 32).digest()
    assert token.text == f"hfmds_enrol_{'0' * 12}_{'ab' * 32}"


def test_a_token_does_not_show_its_secret() -> None:
    token = new_token(TokenKind.ADMIN)
    assert token.secret not in f"{token} {token!r}"
    assert str(token) == f"admin token {token.token_id}"


def test_other_texts_are_no_tokens() -> None:
    text = new_token(TokenKind.ADMIN).text
    assert parse_token(text, TokenKind.ENROL) is None
    for other in ("", text[:-1], text + "0", text.upper(), text + "\n", "hfmds_root" + text[11:]):
        assert parse_token(other, TokenKind.ADMIN) is None
