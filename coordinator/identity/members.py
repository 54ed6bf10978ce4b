"""The members of the fleet: which devices are revoked or in quarantine, and revoked certificates.

Every exclusion, and every end of one, is an event in the log of the fleet.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from coordinator.identity.fleet_records import FleetRecords
from coordinator.identity.revocation_cleanup import (
    forget_certificates,
    forget_devices,
    forget_expired,
)
from coordinator.records.tables import CertificateRow, DeviceRow, MemberRow, RevokedCertificateRow
from hfmds.domain.administration.events import EventKind
from hfmds.domain.administration.fleet import Forgetting, Forgotten, Member
from hfmds.errors import LimitExceeded
from hfmds.service.security.exclusions import Exclusions
from hfmds.storage.database import reading, transaction

# One message of at most 4 MiB carries the list to the store.
_MOST_REVOKED = 15_000
_MOST_SERIALS = 15_000
_MOST_QUARANTINED = 2_000


class Members:
    """Records of the fleet's members. Methods block: call them in a thread."""

    def __init__(self, engine: Engine, fleet: FleetRecords, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._fleet = fleet
        self._clock = clock

    def revoke(self, device_id: str, reason: str, by: str) -> bool:
        """Revoke all present certificates of a device; return whether the device was known."""
        with transaction(self._engine) as session:
            known = _is_known(session, device_id)
            row = member(session, device_id)
            if not row.revoked_at:
                revoked = select(func.count()).where(MemberRow.revoked_at > 0)
                _require_room(
                    session.scalar(revoked),
                    _MOST_REVOKED,
                    "devices are revoked",
                    "delete old revocations: hfmds pki forget --devices DAYS",
                )
            row.revoked_at = max(row.revoked_at, self._clock())
            row.revoked_until = row.certified_until
            row.revoked, row.quarantined, row.reason = True, False, reason
            self._note(session, EventKind.DEVICE_REVOKED, device=device_id, reason=reason, by=by)
            return known

    def revoke_certificate(self, serial: str, reason: str, by: str) -> None:
        """Revoke a certificate and, if a device has it, all certificates of the same key."""
        with transaction(self._engine) as session:
            if session.get(RevokedCertificateRow, serial) is not None:
                return
            now = self._clock()
            forget_expired(session, now)
            dead = {serial: 0.0} | _forget_key(session, serial)
            revoked = session.scalar(select(func.count(RevokedCertificateRow.serial))) or 0
            _require_room(
                revoked + len(dead) - 1,
                _MOST_SERIALS,
                "certificates are revoked by their numbers",
                "delete old revocations: hfmds pki forget --certificates DAYS",
            )
            for dead_serial, until in dead.items():
                if session.get(RevokedCertificateRow, dead_serial) is None:
                    session.add(
                        RevokedCertificateRow(serial=dead_serial, revoked_at=now, until=until)
                    )
            self._note(session, EventKind.CERTIFICATE_REVOKED, serial=serial, reason=reason, by=by)

    def quarantine(self, device_id: str, reason: str, by: str) -> bool:
        """Keep a device from working; return whether the device was known.

        A revoked device stays revoked, which excludes it from more.
        """
        with transaction(self._engine) as session:
            known = _is_known(session, device_id)
            row = member(session, device_id)
            if row.revoked or (row.quarantined and row.reason == reason):
                return known
            if not row.quarantined:
                quarantined = session.scalar(select(func.count()).where(MemberRow.quarantined))
                _require_room(
                    quarantined,
                    _MOST_QUARANTINED,
                    "devices are in quarantine",
                    "release or revoke others first: hfmds pki devices lists them",
                )
            row.quarantined, row.reason = True, reason
            kind = EventKind.DEVICE_QUARANTINED
            self._note(session, kind, device=device_id, reason=reason, by=by)
            return known

    def release(self, device_id: str, by: str) -> None:
        """End a quarantine."""
        with transaction(self._engine) as session:
            row = session.get(MemberRow, device_id)
            if row is not None and row.quarantined:
                row.quarantined, row.reason = False, ""
                self._note(session, EventKind.DEVICE_RELEASED, device=device_id, by=by)

    def forget(self, terms: Forgetting, by: str) -> Forgotten:
        """Delete old revocations whose certificates have expired, to make room for new ones."""
        with transaction(self._engine) as session:
            now, devices, certificates = self._clock(), 0, 0
            if terms.devices_seconds is not None:
                devices = forget_devices(session, now - terms.devices_seconds, now)
            if terms.certificates_seconds is not None:
                certificates = forget_certificates(session, now - terms.certificates_seconds, now)
            if devices or certificates:
                details = {"devices": devices, "certificates": certificates, "by": by}
                self._note(session, EventKind.REVOCATIONS_FORGOTTEN, **details)
            return Forgotten(devices, certificates)

    def list(self, after: str = "", most: int | None = None) -> list[Member]:
        """List devices that ever enrolled or were excluded, by id: at most so many after an id."""
        behind = select(MemberRow).order_by(MemberRow.device_id).limit(most)
        if after:
            behind = behind.where(MemberRow.device_id > after)
        with reading(self._engine) as session:
            rows = session.scalars(behind).all()
            newest: dict[str, CertificateRow] = {}
            certificates = select(CertificateRow).order_by(CertificateRow.issued_at)
            if most is not None:
                ids = [row.device_id for row in rows]
                certificates = certificates.where(CertificateRow.device_id.in_(ids))
            for certificate in session.scalars(certificates):
                newest[certificate.device_id] = certificate
            return [_member(row, newest.get(row.device_id)) for row in rows]

    def exclusions(self) -> Exclusions:
        """Return the exclusions as they are now."""
        with reading(self._engine) as session:
            dead = select(MemberRow).where(MemberRow.revoked_at > 0)
            quarantined = select(MemberRow.device_id, MemberRow.reason).where(MemberRow.quarantined)
            return Exclusions(
                {row.device_id: dead_until(row) for row in session.scalars(dead)},
                frozenset(session.scalars(select(RevokedCertificateRow.serial))),
                {row[0]: row[1] for row in session.execute(quarantined)},
            )

    def _note(self, session: Session, kind: EventKind, **details: object) -> None:
        self._fleet.note_change(session)
        self._fleet.append(session, kind, **details)


def _is_known(session: Session, device_id: str) -> bool:
    """Return whether a device of this id ever enrolled or checked in. If not, it may be a typo."""
    row = session.get(MemberRow, device_id)
    enrolled = row is not None and row.enrolled_at > 0
    return enrolled or session.get(DeviceRow, device_id) is not None


def member(session: Session, device_id: str) -> MemberRow:
    """Return the device's row; create it if there is none."""
    row = session.get(MemberRow, device_id)
    if row is None:
        row = MemberRow(
            device_id=device_id,
            token_id="",
            enrolled_at=0.0,
            certified_until=0.0,
            revoked=False,
            revoked_at=0.0,
            revoked_until=0.0,
            quarantined=False,
            reason="",
        )
        session.add(row)
    return row


def _forget_key(session: Session, serial: str) -> dict[str, float]:
    """Forget the key of this certificate; return the ends of the key's certificates by serial."""
    row = session.get(CertificateRow, serial)
    if row is None:
        return {}
    same_key = CertificateRow.key_sha256 == row.key_sha256
    rows = session.scalars(select(CertificateRow).where(same_key)).all()
    for known in rows:
        session.delete(known)
    return {known.serial: known.until for known in rows}


def dead_until(row: MemberRow) -> int:
    """Return the last second at which a revoked certificate of the device may begin."""
    return int(row.revoked_at)


def exclusions_of(session: Session, row: MemberRow, serial: str) -> Exclusions:
    """Return the exclusions of one device and one certificate, as the database has them now."""
    dead = session.get(RevokedCertificateRow, serial) is not None
    return Exclusions(
        {row.device_id: dead_until(row)} if row.revoked_at else {},
        frozenset({serial}) if dead else frozenset(),
    )


def _require_room(count: int | None, most: int, what: str, remedy: str) -> None:
    if (count or 0) >= most:
        raise LimitExceeded(f"{most} {what}, which is the limit; {remedy} (docs/security.md)")


def _member(row: MemberRow, certificate: CertificateRow | None) -> Member:
    return Member(
        device_id=row.device_id,
        token_id=row.token_id,
        enrolled_at=_moment(row.enrolled_at),
        serial=certificate.serial if certificate else "",
        certificate_until=_moment(certificate.until if certificate else 0.0),
        revoked_at=_moment(row.revoked_at),
        revoked=row.revoked,
        quarantined=row.quarantined,
        reason=row.reason,
    )


def _moment(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
