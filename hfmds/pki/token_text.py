"""Tokens: secrets that let in a party without a certificate.

    hfmds_enrol_4f1d0c77a9e2_<64 hex digits>      a device, to get a certificate
    hfmds_admin_90b3c5518d6f_<64 hex digits>      a person

The first digits name the token and are no secret. The others are 256 random bits. Nobody can guess
them, so a plain SHA-256 of them is safe to store.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

_TEXT = re.compile(r"hfmds_(enrol|admin)_([0-9a-f]{12})_([0-9a-f]{64})")


class TokenKind(enum.StrEnum):
    """The kind of party that a token lets in."""

    ENROL = "enrol"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Token:
    """A token with its secret. Its text form for logs hides the secret."""

    kind: TokenKind
    token_id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """The complete token, for its holder only."""
        return f"hfmds_{self.kind.value}_{self.token_id}_{self.secret}"

    @property
    def secret_sha256(self) -> bytes:
        """The hash of the secret, which is safe to store."""
        return hashlib.sha256(self.secret.encode()).digest()

    def is_of(self, secret_sha256: bytes) -> bool:
        """Return whether this is the hash of the token's secret, in constant time."""
        return hmac.compare_digest(self.secret_sha256, secret_sha256)

    def __str__(self) -> str:
        return f"{self.kind.value} token {self.token_id}"


def new_token(kind: TokenKind) -> Token:
    """Make a new random token."""
    return Token(kind, secrets.token_hex(6), secrets.token_hex(32))


def parse_token(text: str, kind: TokenKind) -> Token | None:
    """Parse a token; None if the text is no token of this kind."""
    match = _TEXT.fullmatch(text)
    if match is None or match[1] != kind.value:
        return None
    return Token(kind, match[2], match[3])


def id_of_token(text: str) -> str:
    """Return the id in a complete token; otherwise the text, which may be an id itself."""
    match = _TEXT.fullmatch(text)
    return match[2] if match else text
