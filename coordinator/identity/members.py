"""The standing of devices: revoked, in quarantine, or neither; and certificates that are dead.

Everything that shuts somebody out, or lets it in again, is in the log of the fleet.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from coordinator.devices.listing import by_device
from coordinator.identity.fleet_records import FleetRecords
from coordinator.identity.revocation_cleanup import (
    forget_certificates,
    forget_devices,
    forget_run_out,
)
from coordinator.records.tables import CertificateRow, DeviceRow, MemberRow, RevokedCertificateRow
from hfmds.domain.events import EventKind
from hfmds.domain.fleet import Forgetting, Forgotten, Member
from hfmds.errors import LimitExceeded
from hfmds.service.security.exclusions import Exclusions
from hfmds.storage.database import reading, transaction

# The whole list goes to the store in one message, of 4 MiB at most.
_MOST_REVOKED = 15_000
_MOST_SERIALS = 15_000
_MOST_QUARANTINED = 2_000


class Members:
    """The fleet's books. Methods block: call them in a thread."""

    def __init__(self, engine: Engine, fleet: FleetRecords, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._fleet = fleet
        self._clock = clock

    def revoke(self, device_id: str, reason: str, by: str) -> bool:
        """Shut a device out: all certificates that it has by now are dead. Whether it was known."""
        with transaction(self._engine) as session:
            known = _is_known(session, device_id)
            row = member(session, device_id)
            if not row.revoked_at:
                revoked = select(func.count()).where(MemberRow.revoked_at > 0)
                _require_room(
                    session.scalar(revoked),
                    _MOST_REVOKED,
                    "devices are revoked",
                    "forget old ones: hfmds pki forget --devices DAYS",
                )
            row.revoked_at = max(row.revoked_at, self._clock())
            row.revoked_until = row.certified_until
            row.revoked, row.quarantined, row.reason = True, False, reason
            self._note(session, EventKind.DEVICE_REVOKED, device=device_id, reason=reason, by=by)
            return known

    def revoke_certificate(self, serial: str, reason: str, by: str) -> None:
        """Shut out whoever shows this certificate, or has its key, if that is a device's."""
        with transaction(self._engine) as session:
            if session.get(RevokedCertificateRow, serial) is not None:
                return
            now = self._clock()
            forget_run_out(session, now)
            dead = {serial: 0.0} | _forget_key(session, serial)
            revoked = session.scalar(select(func.count(RevokedCertificateRow.serial))) or 0
            _require_room(
                revoked + len(dead) - 1,
                _MOST_SERIALS,
                "certificates are revoked by their numbers",
                "forget old ones: hfmds pki forget --certificates DAYS",
            )
            for each, until in dead.items():
                if session.get(RevokedCertificateRow, each) is None:
                    session.add(RevokedCertificateRow(serial=each, revoked_at=now, until=until))
            self._note(session, EventKind.CERTIFICATE_REVOKED, serial=serial, reason=reason, by=by)

    def quarantine(self, device_id: str, reason: str, by: str) -> bool:
        """Keep a device from working; a device that is revoked is kept from more already.

        Whether it was known.
        """
        with transaction(self._engine) as session:
            known = _is_known(session, device_id)
            row = member(session, device_id)
            if row.revoked or (row.quarantined and row.reason == reason):
                return known
            if not row.quarantined:
                inside = session.scalar(select(func.count()).where(MemberRow.quarantined))
                _require_room(
                    inside,
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
        """Make room for others: have old revocations forgotten, as their certificates are over."""
        with transaction(self._engine) as session:
            now, devices, certificates = self._clock(), 0, 0
            if terms.devices_seconds is not None:
                devices = forget_devices(session, now - terms.devices_seconds, now)
            if terms.certificates_seconds is not None:
                certificates = forget_certificates(session, now - terms.certificates_seconds, now)
            if devices or certificates:
                told = {"devices": devices, "certificates": certificates, "by": by}
                self._note(session, EventKind.REVOCATIONS_FORGOTTEN, **told)
            return Forgotten(devices, certificates)

    def list(self, after: str = "", most: int | None = None) -> list[Member]:
        """All that ever enrolled, were revoked or in quarantine, by id; so many behind an id."""
        with reading(self._engine) as session:
            rows = session.scalars(by_device(MemberRow, after, most)).all()
            newest: dict[str, CertificateRow] = {}
            theirs = select(CertificateRow).order_by(CertificateRow.issued_at)
            if most is not None:
                theirs = theirs.where(CertificateRow.device_id.in_([row.device_id for row in rows]))
            for row in session.scalars(theirs):
                newest[row.device_id] = row
            return [_member(row, newest.get(row.device_id)) for row in rows]

    def exclusions(self) -> Exclusions:
        """Who is shut out now."""
        with reading(self._engine) as session:
            dead = select(MemberRow).where(MemberRow.revoked_at > 0)
            inside = select(MemberRow.device_id, MemberRow.reason).where(MemberRow.quarantined)
            return Exclusions(
                {row.device_id: dead_until(row) for row in session.scalars(dead)},
                frozenset(session.scalars(select(RevokedCertificateRow.serial))),
                {row[0]: row[1] for row in session.execute(inside)},
            )

    def _note(self, session: Session, kind: EventKind, **details: object) -> None:
        self._fleet.note_change(session)
        self._fleet.append(session, kind, **details)


def _is_known(session: Session, device_id: str) -> bool:
    """Whether a device of this id has ever enrolled or checked in; else it may be misspelt."""
    row = session.get(MemberRow, device_id)
    enrolled = row is not None and row.enrolled_at > 0
    return enrolled or session.get(DeviceRow, device_id) is not None


def member(session: Session, device_id: str) -> MemberRow:
    """The device's row, made if there is none."""
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
    """Know no device any more by the key of this certificate; the key's, and when they run out."""
    row = session.get(CertificateRow, serial)
    if row is None:
        return {}
    same_key = CertificateRow.key_sha256 == row.key_sha256
    rows = session.scalars(select(CertificateRow).where(same_key)).all()
    for known in rows:
        session.delete(known)
    return {known.serial: known.until for known in rows}


def dead_until(row: MemberRow) -> int:
    """Certificates of the device are dead that begin then or before; they have whole seconds."""
    return int(row.revoked_at)


def exclusions_of(session: Session, row: MemberRow, serial: str) -> Exclusions:
    """Those of one device and one certificate, as the books have them at this very moment."""
    dead = session.get(RevokedCertificateRow, serial) is not None
    return Exclusions(
        {row.device_id: dead_until(row)} if row.revoked_at else {},
        frozenset({serial}) if dead else frozenset(),
    )


def _require_room(there: int | None, most: int, what: str, remedy: str) -> None:
    if (there or 0) >= most:
        raise LimitExceeded(
            f"{most} {what}, as many as can be told to every server; {remedy} (docs/security.md)"
        )


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
