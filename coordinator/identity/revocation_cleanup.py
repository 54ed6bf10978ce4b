"""Deletes revocations that nobody needs, because every certificate they exclude has expired.

The coordinator knows only the certificates that its own issuer made. An operator who deletes old
revocations vouches for any other certificates; this module checks the known ones.
"""

from __future__ import annotations

from sqlalchemy import Select, delete, exists, func, select, update
from sqlalchemy.orm import Session

from coordinator.records.tables import CertificateRow, MemberRow, RevokedCertificateRow, TokenRow
from hfmds.pki.authority import CLOCKS_DIFFER


def forget_devices(session: Session, revoked_before: float, now: float) -> int:
    """Delete the revocations of devices from before this time; return how many.

    A revocation stays if the device has an older certificate that is still valid, or if an older
    token would let the device in again.
    """
    old = _old_devices(revoked_before, now)
    count = session.scalar(select(func.count()).select_from(old.subquery())) or 0
    revoked_at = select(MemberRow.revoked_at).where(MemberRow.device_id == CertificateRow.device_id)
    of_before = CertificateRow.issued_at <= revoked_at.scalar_subquery()
    of_old = CertificateRow.device_id.in_(old)
    session.execute(delete(CertificateRow).where(of_old, of_before))
    is_old = MemberRow.device_id.in_(old)
    session.execute(delete(MemberRow).where(is_old, MemberRow.revoked))
    session.execute(update(MemberRow).where(is_old).values(revoked_at=0.0, revoked_until=0.0))
    return count


def forget_certificates(session: Session, revoked_before: float, now: float) -> int:
    """Delete revoked serial numbers from before this time that are not known to be valid."""
    row = RevokedCertificateRow
    expired = row.until <= ended_on_all_clocks(now)
    old = select(row.serial).where(row.revoked_at <= revoked_before, expired)
    count = session.scalar(select(func.count()).select_from(old.subquery())) or 0
    session.execute(delete(row).where(row.serial.in_(old)))
    return count


def forget_expired(session: Session, now: float) -> None:
    """Delete revoked serial numbers of certificates that are known to have expired."""
    until = RevokedCertificateRow.until
    expired = delete(RevokedCertificateRow).where(until > 0, until <= ended_on_all_clocks(now))
    session.execute(expired)


def ended_on_all_clocks(now: float) -> float:
    """Return the latest end that has passed even on a server whose clock is slow."""
    return now - CLOCKS_DIFFER.total_seconds()


def _old_devices(revoked_before: float, now: float) -> Select[str]:
    token_of_before = exists().where(
        TokenRow.device_id == MemberRow.device_id,
        TokenRow.created_at <= MemberRow.revoked_at,
        TokenRow.expires_at > now,
        TokenRow.revoked.is_(False),
    )
    return select(MemberRow.device_id).where(
        MemberRow.revoked_at > 0,
        MemberRow.revoked_at <= revoked_before,
        MemberRow.revoked_until <= ended_on_all_clocks(now),
        ~token_of_before,
    )
