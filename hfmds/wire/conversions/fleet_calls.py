"""Who belongs to the fleet, on the wire: tokens, members, who is shut out. Conversion pairs."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from datetime import datetime

from hfmds.domain.devices import require_id
from hfmds.errors import InvalidInput
from hfmds.service.security.exclusions import Exclusions
from hfmds.service.security.identity import Kind
from hfmds.v1 import fleet_pb2 as pb
from hfmds.v1 import synthesis_store_pb2 as store_pb
from hfmds.wire.conversions.admin_calls import timestamp_from, timestamp_message
from hfmds.wire.conversions.common import require_finite, require_part

MAX_REASON_BYTES = 200  # those of all quarantines must fit into one message
MAX_TOKEN_SECONDS = 365 * 24 * 3600.0

_MAX_USES = 1_000_000
_MAX_PREFIX_CHARACTERS = 100  # what the coordinator appends must fit
_TOKEN_ID = re.compile(r"[0-9a-f]{12}")
_VERSION = re.compile(r"[0-9a-f]{64}")
_SERIAL = re.compile(r"[1-9a-f][0-9a-f]{0,39}")


class Role(enum.StrEnum):
    """What an admin may do; a later one may also do what an earlier one may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    OWNER = "owner"

    @property
    def kind(self) -> Kind:
        return Kind(f"admin/{self.value}")


@dataclass(frozen=True, slots=True)
class EnrolmentTerms:
    """Whom a token lets in as devices: one by its id, or those whose ids begin so."""

    uses: int = 1
    device_id: str = ""  # empty: any that begins with the prefix
    prefix: str = ""  # empty: any
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
        """Whether it lets a device of this id in."""
        if self.device_id:
            return device_id == self.device_id
        return device_id.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class AdminTerms:
    """Whom a token lets in as a person."""

    role: Role


@dataclass(frozen=True, slots=True)
class NewToken:
    """What a caller says of a token that it has made; of the secret, only a hash."""

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
                f"a token that is good for {self.lifetime_seconds} s; it must be above 0 and at "
                f"most {MAX_TOKEN_SECONDS:.0f}, a year"
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
    """A device as the fleet's books have it."""

    device_id: str
    token_id: str = ""
    enrolled_at: datetime | None = None
    serial: str = ""
    certificate_until: datetime | None = None
    revoked_at: datetime | None = None
    revoked: bool = False
    quarantined: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Which revocations to forget: those that are so old, in seconds; None: none of the kind."""

    devices_seconds: float | None = None
    certificates_seconds: float | None = None

    def __post_init__(self) -> None:
        times = [t for t in (self.devices_seconds, self.certificates_seconds) if t is not None]
        if not times:
            raise InvalidInput("say how old revocations are that may be forgotten")
        if min(times) <= 0:
            raise InvalidInput(
                f"revocations that are {min(times)} s old; it must be above 0, and longer than any "
                f"certificate of then is good for"
            )


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many revocations were forgotten."""

    devices: int
    certificates: int


def require_token_id(token_id: str) -> str:
    """What names a token. Whatever else is given is not repeated: it may be the token itself."""
    if not _TOKEN_ID.fullmatch(token_id):
        raise InvalidInput(
            "a token's id is 12 lower-case hex digits, as `hfmds pki tokens` shows them"
        )
    return token_id


def require_serial(serial: str) -> str:
    """A certificate's serial number as the contract writes it."""
    if not _SERIAL.fullmatch(serial):
        raise InvalidInput(
            f"{serial[:60]!r} is not a serial number: 1 to 40 lower-case hex digits without "
            f"leading zeros, as `hfmds pki devices` shows them"
        )
    return serial


def require_version(version: str) -> str:
    """The name of a list of who is shut out."""
    if not _VERSION.fullmatch(version):
        raise InvalidInput("the version of a list is 64 lower-case hex digits")
    return version


def reason_from(reason: str) -> str:
    """A reason from the wire."""
    if len(reason.encode()) > MAX_REASON_BYTES or not reason.isprintable():
        raise InvalidInput(f"a reason is at most {MAX_REASON_BYTES} bytes of UTF-8, on one line")
    return reason


# --- tokens -------------------------------------------------------------------------------------


def new_token_from(
    message: pb.CreateEnrolmentTokenRequest | pb.CreateAdminTokenRequest,
) -> NewToken:
    """From the wire."""
    require_part(message, "terms")
    require_finite(message, "lifetime_seconds")
    terms: EnrolmentTerms | AdminTerms
    if isinstance(message, pb.CreateEnrolmentTokenRequest):
        terms = _enrolment_terms_from(message.terms, used=0)
    else:
        terms = AdminTerms(_role_from(message.terms.role))
    return NewToken(
        message.token_id, message.secret_sha256, message.name, message.lifetime_seconds, terms
    )


def token_message(token: TokenRecord) -> pb.Token:
    """To the wire."""
    message = pb.Token(
        token_id=token.token_id,
        name=token.name,
        created_at=timestamp_message(token.created_at),
        created_by=token.created_by,
        expires_at=timestamp_message(token.expires_at),
    )
    if isinstance(token.terms, EnrolmentTerms):
        message.enrolment.CopyFrom(enrolment_terms_message(token.terms))
    else:
        message.admin.role = token.terms.role.value
    return message


def token_from(message: pb.Token) -> TokenRecord:
    """From the wire."""
    terms: EnrolmentTerms | AdminTerms
    if message.WhichOneof("terms") == "enrolment":
        terms = _enrolment_terms_from(message.enrolment, used=message.enrolment.used)
    else:
        terms = AdminTerms(_role_from(message.admin.role))
    return TokenRecord(
        message.token_id,
        message.name,
        timestamp_from(message.created_at),
        message.created_by,
        timestamp_from(message.expires_at),
        terms,
    )


def enrolment_terms_message(terms: EnrolmentTerms) -> pb.EnrolmentTerms:
    """To the wire."""
    message = pb.EnrolmentTerms(uses=terms.uses, used=terms.used)
    if terms.device_id:
        message.device_id = terms.device_id
    else:
        message.prefix = terms.prefix
    return message


def _enrolment_terms_from(message: pb.EnrolmentTerms, *, used: int) -> EnrolmentTerms:
    if message.WhichOneof("devices") == "device_id" and not message.device_id:
        raise InvalidInput("EnrolmentTerms.device_id is empty; set it, or prefix")
    return EnrolmentTerms(message.uses, message.device_id, message.prefix, used)


def _role_from(role: str) -> Role:
    try:
        return Role(role)
    except ValueError:
        raise InvalidInput(f"role {role[:60]!r} is not viewer, operator or owner") from None


# --- members ------------------------------------------------------------------------------------


def member_message(member: Member) -> pb.Member:
    """To the wire."""
    return pb.Member(
        device_id=member.device_id,
        token_id=member.token_id,
        enrolled_at=timestamp_message(member.enrolled_at) if member.enrolled_at else None,
        serial=member.serial,
        certificate_until=(
            timestamp_message(member.certificate_until) if member.certificate_until else None
        ),
        revoked_at=timestamp_message(member.revoked_at) if member.revoked_at else None,
        revoked=member.revoked,
        quarantined=member.quarantined,
        reason=member.reason,
    )


def member_from(message: pb.Member) -> Member:
    """From the wire."""

    def moment(name: str) -> datetime | None:
        return timestamp_from(getattr(message, name)) if message.HasField(name) else None

    return Member(
        device_id=message.device_id,
        token_id=message.token_id,
        enrolled_at=moment("enrolled_at"),
        serial=message.serial,
        certificate_until=moment("certificate_until"),
        revoked_at=moment("revoked_at"),
        revoked=message.revoked,
        quarantined=message.quarantined,
        reason=message.reason,
    )


# --- old revocations ----------------------------------------------------------------------------


def forgetting_message(terms: Forgetting) -> pb.ForgetRevokedRequest:
    """To the wire."""
    return pb.ForgetRevokedRequest(
        devices_older_than_seconds=terms.devices_seconds,
        certificates_older_than_seconds=terms.certificates_seconds,
    )


def forgetting_from(message: pb.ForgetRevokedRequest) -> Forgetting:
    """From the wire."""

    def seconds(name: str) -> float | None:
        require_finite(message, name)
        return getattr(message, name) if message.HasField(name) else None

    return Forgetting(
        seconds("devices_older_than_seconds"), seconds("certificates_older_than_seconds")
    )


# --- who is shut out ----------------------------------------------------------------------------


def exclusions_message(exclusions: Exclusions) -> store_pb.Exclusions:
    """To the wire."""
    return store_pb.Exclusions(
        dead_until=exclusions.dead_until,
        serials=sorted(exclusions.serials),
        quarantined=exclusions.quarantined,
    )


def exclusions_from(message: store_pb.Exclusions) -> Exclusions:
    """From the wire."""
    for device_id in (*message.dead_until, *message.quarantined):
        require_id(device_id, "device id")
    return Exclusions(
        dict(message.dead_until),
        frozenset(map(require_serial, message.serials)),
        {device: reason_from(reason) for device, reason in message.quarantined.items()},
    )


def encode_exclusions(exclusions: Exclusions) -> bytes:
    """To the database."""
    return exclusions_message(exclusions).SerializeToString(deterministic=True)


def decode_exclusions(record: bytes) -> Exclusions:
    """From the database."""
    return exclusions_from(store_pb.Exclusions.FromString(record))
