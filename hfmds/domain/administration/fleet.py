"""The nouns of a fleet's administration: tokens and members."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from datetime import datetime

from hfmds.domain.devices import require_id
from hfmds.errors import InvalidInput

MAX_TOKEN_SECONDS = 365 * 24 * 3600.0

_MAX_USES = 1_000_000
_MAX_PREFIX_CHARACTERS = 100  # the coordinator appends to it
_TOKEN_ID = re.compile(r"[0-9a-f]{12}")


class Role(enum.StrEnum):
    """The role of a person. `hfmds/service/security/access.py` says what each role may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class EnrolmentTerms:
    """The devices that a token admits: one id, or all ids with a prefix."""

    uses: int = 1
    device_id: str = ""  # empty: any id with the prefix
    prefix: str = ""  # empty: any id
    used: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.uses <= _MAX_USES:
            raise InvalidInput(f"a token for {self.uses} devices; it must be 1 to {_MAX_USES}")
        if self.device_id:
            require_id(self.device_id, "device id")
            if self.uses != 1 or self.prefix:
                raise InvalidInput("a token for one device id has one use, and no prefix")
        if self.prefix:
            require_id(self.prefix, "prefix")
            if len(self.prefix) > _MAX_PREFIX_CHARACTERS:
                raise InvalidInput(f"a prefix has at most {_MAX_PREFIX_CHARACTERS} characters")

    def admits(self, device_id: str) -> bool:
        """Return whether the token admits a device of this id."""
        if self.device_id:
            return device_id == self.device_id
        return device_id.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class AdminTerms:
    """The role that a token gives a person."""

    role: Role


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that a caller made; it keeps the secret and sends a hash of it."""

    token_id: str
    secret_sha256: bytes
    name: str
    lifetime_seconds: float
    terms: EnrolmentTerms | AdminTerms

    def __post_init__(self) -> None:
        require_token_id(self.token_id)
        if len(self.secret_sha256) != 32:
            raise InvalidInput("secret_sha256 has 32 bytes")
        require_id(self.name, "name")
        if not 0 < self.lifetime_seconds <= MAX_TOKEN_SECONDS:
            raise InvalidInput(
                f"a token is valid for {self.lifetime_seconds} s; it must be above 0 and at most "
                f"{MAX_TOKEN_SECONDS:.0f}, a year"
            )


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token without its secret."""

    token_id: str
    name: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    terms: EnrolmentTerms | AdminTerms


@dataclass(frozen=True, slots=True)
class Member:
    """A device that is enrolled, or that an operator revoked or quarantined."""

    device_id: str
    token_id: str = ""
    enrolled_at: datetime | None = None
    serial: str = ""
    certificate_until: datetime | None = None
    revoked_at: datetime | None = None
    revoked: bool = False
    quarantined: bool = False
    reason: str = ""


def require_token_id(token_id: str) -> str:
    """Return a valid token id. The error does not quote the text, which may be the token itself."""
    if not _TOKEN_ID.fullmatch(token_id):
        raise InvalidInput(
            "a token's id is 12 lower-case hex digits, as `hfmds pki tokens` shows them"
        )
    return token_id
