"""The members of the fleet: which devices are revoked or in quarantine, and revoked certificates.

Every exclusion, and every end of one, is an event in the log of the fleet. A revocation is for
ever: only a later token for the device's id lets the device in again, with another key.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from coordinator.identity.fleet_records import FleetRecords
from coordinator.records.tables import (
    DeadKeyRow,
    DeviceRow,
    MemberRow,
    RevokedCertificateRow,
    TokenRow,
)
from hfmds.domain.administration.events import EventKind
from hfmds.domain.administration.fleet import Member
from hfmds.errors import LimitExceeded
from hfmds.service.security.exclusions import Exclusions, end_of_key
from hfmds.wire.conversions.fleet_calls import exclusions_message

# One message of at most 4 MiB carries all exclusions to the store. The last part is for serial
# numbers, which only an owner revokes, so that no operator can fill the list.
_MOST_BYTES_OF_DEVICES = 3 * 2**20
_MOST_BYTES = 4 * 2**20 - 2**16


class Members:
    """Records of the fleet's members. Methods block: call them in a thread."""

    def __init__(self, fleet: FleetRecords) -> None:
        self._fleet = fleet

    def revoke(self, device_id: str, reason: str, by: str) -> bool:
        """Revoke all present certificates of a device; return whether the device was known.

        The device's key, and the tokens that name the device, end as well.
        """
        with self._fleet.write_session() as session:
            known, row = is_known(session, device_id), member(session, device_id)
            # If the device came back, its certificates may begin up to a second after its last
            # revocation, even where the clock still shows an earlier time.
            came_back = row.revoked_at > 0 and not row.revoked
            row.revoked_at = max(self._fleet.now(), row.revoked_at + came_back)
            row.revoked, row.quarantined, row.reason = True, False, reason
            end_key(session, row.key_sha256)
            naming = update(TokenRow).where(TokenRow.device_id == device_id)
            session.execute(naming.values(revoked=True))
            self._note(session, EventKind.DEVICE_REVOKED, device=device_id, reason=reason, by=by)
            _require_room(session, _MOST_BYTES_OF_DEVICES)
            return known

    def revoke_certificate(self, serial: str, reason: str, by: str) -> None:
        """Revoke a certificate of any party, and all certificates of the key that it names."""
        with self._fleet.write_session() as session:
            if session.get(RevokedCertificateRow, serial) is not None:
                return
            session.add(RevokedCertificateRow(serial=serial))
            end_key(session, serial)
            self._note(session, EventKind.CERTIFICATE_REVOKED, serial=serial, reason=reason, by=by)
            _require_room(session, _MOST_BYTES)

    def quarantine(self, device_id: str, reason: str, by: str) -> bool:
        """Keep a device from working; return whether the device was known.

        A revoked device stays revoked, which excludes it from more.
        """
        with self._fleet.write_session() as session:
            known, row = is_known(session, device_id), member(session, device_id)
            if row.revoked or (row.quarantined and row.reason == reason):
                return known
            row.quarantined, row.reason = True, reason
            kind = EventKind.DEVICE_QUARANTINED
            self._note(session, kind, device=device_id, reason=reason, by=by)
            _require_room(session, _MOST_BYTES_OF_DEVICES)
            return known

    def release(self, device_id: str, by: str) -> None:
        """End a quarantine."""
        with self._fleet.write_session() as session:
            row = session.get(MemberRow, device_id)
            if row is not None and row.quarantined:
                row.quarantined, row.reason = False, ""
                self._note(session, EventKind.DEVICE_RELEASED, device=device_id, by=by)

    def list(self, after: str = "", most: int | None = None) -> list[Member]:
        """List devices that ever enrolled or were excluded, by id: at most so many after an id."""
        behind = select(MemberRow).where(MemberRow.device_id > after)
        with self._fleet.read_session() as session:
            rows = session.scalars(behind.order_by(MemberRow.device_id).limit(most))
            return [_member(row) for row in rows]

    def exclusions(self) -> Exclusions:
        """Return the exclusions as they are now."""
        with self._fleet.read_session() as session:
            return _exclusions(session)

    def _note(self, session: Session, kind: EventKind, **details: object) -> None:
        self._fleet.note_change(session)
        self._fleet.append(session, kind, **details)


def member(session: Session, device_id: str) -> MemberRow:
    """Return the device's row; create it if there is none."""
    row = session.get(MemberRow, device_id)
    if row is None:
        row = MemberRow(device_id=device_id)
        session.add(row)
        session.flush()  # fills in the defaults
    return row


def is_known(session: Session, device_id: str) -> bool:
    """Return whether a device of this id ever enrolled or checked in. If not, it may be a typo."""
    row = session.get(MemberRow, device_id)
    has_key = row is not None and row.key_sha256 != ""
    return has_key or session.get(DeviceRow, device_id) is not None


def end_key(session: Session, name: str) -> None:
    """Let nobody get a certificate for a key again, by the key's name or a serial number of it."""
    if name:
        session.merge(DeadKeyRow(key_end=end_of_key(name)))


def _exclusions(session: Session) -> Exclusions:
    revoked = select(MemberRow.device_id, MemberRow.revoked_at).where(MemberRow.revoked_at > 0)
    quarantined = select(MemberRow.device_id, MemberRow.reason).where(MemberRow.quarantined)
    return Exclusions(
        {row.device_id: int(row.revoked_at) for row in session.execute(revoked)},
        frozenset(session.scalars(select(RevokedCertificateRow.serial))),
        {row.device_id: row.reason for row in session.execute(quarantined)},
    )


def _require_room(session: Session, most_bytes: int) -> None:
    if exclusions_message(_exclusions(session)).ByteSize() > most_bytes:
        raise LimitExceeded(
            f"the list of exclusions has {most_bytes} bytes, which is the limit; release devices "
            f"from quarantine, or let an owner revoke the serial number of the device's "
            f"certificate (docs/security.md)"
        )


def _member(row: MemberRow) -> Member:
    return Member(
        device_id=row.device_id,
        token_id=row.token_id,
        enrolled_at=_moment(row.enrolled_at),
        serial=row.serial,
        certificate_until=_moment(row.certified_until),
        revoked_at=_moment(row.revoked_at),
        revoked=row.revoked,
        quarantined=row.quarantined,
        reason=row.reason,
    )


def _moment(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
