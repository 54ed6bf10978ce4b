"""Revocations that are not needed any more: all that they shut out has run out by itself.

What certificates of a device there were is known only of those that the device issuer made. So
whoever has old revocations forgotten vouches for the others, and here is checked what is known.
"""

from __future__ import annotations

from sqlalchemy import Select, delete, exists, func, select, update
from sqlalchemy.orm import Session

from coordinator.records.tables import CertificateRow, MemberRow, RevokedCertificateRow, TokenRow
from hfmds.pki.authority import CLOCKS_DIFFER


def forget_devices(session: Session, revoked_before: float, now: float) -> int:
    """Those that were revoked by then; how many.

    Kept are devices that have a certificate of before that is good, and those that a token of
    before would let in again.
    """
    old = _old_devices(revoked_before, now)
    found = session.scalar(select(func.count()).select_from(old.subquery())) or 0
    revoked_at = select(MemberRow.revoked_at).where(MemberRow.device_id == CertificateRow.device_id)
    of_before = CertificateRow.issued_at <= revoked_at.scalar_subquery()
    of_old = CertificateRow.device_id.in_(old)
    session.execute(delete(CertificateRow).where(of_old, of_before))
    is_old = MemberRow.device_id.in_(old)
    session.execute(delete(MemberRow).where(is_old, MemberRow.revoked))
    session.execute(update(MemberRow).where(is_old).values(revoked_at=0.0, revoked_until=0.0))
    return found


def forget_certificates(session: Session, revoked_before: float, now: float) -> int:
    """Those that were revoked by their numbers by then, and are not known to be good; how many."""
    row = RevokedCertificateRow
    old = select(row.serial).where(row.revoked_at <= revoked_before, row.until <= surely(now))
    found = session.scalar(select(func.count()).select_from(old.subquery())) or 0
    session.execute(delete(row).where(row.serial.in_(old)))
    return found


def forget_run_out(session: Session, now: float) -> None:
    """Certificates that were revoked by their numbers, and are known to have run out since."""
    until = RevokedCertificateRow.until
    run_out = delete(RevokedCertificateRow).where(until > 0, until <= surely(now))
    session.execute(run_out)


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
        MemberRow.revoked_until <= surely(now),
        ~token_of_before,
    )


def surely(now: float) -> float:
    """What ended by then is over by every server's clock."""
    return now - CLOCKS_DIFFER.total_seconds()
