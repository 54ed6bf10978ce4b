"""Conversion pairs for fleet.proto: tokens, members and revocations."""

from __future__ import annotations

import re
from datetime import datetime

from hfmds.domain.administration.fleet import (
    AdminTerms,
    EnrolmentTerms,
    Member,
    NewToken,
    Role,
    TokenRecord,
)
from hfmds.domain.devices import require_id
from hfmds.errors import InvalidInput
from hfmds.service.security.exclusions import Exclusions
from hfmds.v1 import fleet_pb2 as pb
from hfmds.v1 import synthesis_store_pb2 as store_pb
from hfmds.wire.conversions.admin_calls import timestamp_from, timestamp_message
from hfmds.wire.conversions.common import require_finite, require_part

MAX_REASON_BYTES = 200

_VERSION = re.compile(r"[0-9a-f]{64}")
_SERIAL = re.compile(r"[1-9a-f][0-9a-f]{0,39}")


def require_serial(serial: str) -> str:
    """Return a valid certificate serial number, as the proto writes it."""
    if not _SERIAL.fullmatch(serial):
        raise InvalidInput(
            f"{serial[:60]!r} is not a serial number: 1 to 40 lower-case hex digits without "
            f"leading zeros, as `hfmds pki devices` shows them"
        )
    return serial


def require_version(version: str) -> str:
    """Return a valid version of the list of exclusions."""
    if not _VERSION.fullmatch(version):
        raise InvalidInput("the version of a list is 64 lower-case hex digits")
    return version


def reason_from(reason: str) -> str:
    """From the wire: the reason of a revocation or quarantine."""
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
        raise InvalidInput(f"role {role[:60]!r} is not one of {', '.join(Role)}") from None


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


# --- exclusions ---------------------------------------------------------------------------------


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
