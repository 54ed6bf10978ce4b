"""Certificates for devices: the first by a token, the next by the last certificate or by the key.

Enrolment checks, in this order: the nonce is fresh; the request's key signed the request together
with the nonce; the token is valid, or the key is the device's; nobody revoked the device since; and
no device takes the place of another one.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from coordinator.identity.fleet_records import FleetRecords
from coordinator.identity.members import dead_until, exclusions_of, member
from coordinator.identity.nonces import Nonces
from coordinator.identity.revocation_cleanup import ended_on_all_clocks
from coordinator.identity.tokens import Tokens, terms_of
from coordinator.records.tables import CertificateRow, DeviceRow, MemberRow, TokenRow
from hfmds.domain.administration.events import EventKind
from hfmds.domain.devices import require_id
from hfmds.errors import Conflict, InvalidInput, NotAllowed, Unavailable, WrongState
from hfmds.pki.authority import CLOCKS_DIFFER, Authority
from hfmds.pki.certificate_requests import Request
from hfmds.service.security.certificates import Certificate
from hfmds.service.security.identity import Identity, Kind
from hfmds.storage.database import reading, transaction

_KNOWN_BY_KEY_SECONDS = 90 * 24 * 3600.0  # after the end of a device's last certificate
_RENEW_FROM, _RENEW_TO = 0.6, 0.7  # of a lifetime, spread so that devices do not renew together
# Valid certificates of one device, all in the database. A device needs two. A device that forgets
# the time whenever it starts asks for one at each start.
_MOST_VALID = 200
_ASK_AGAIN_SECONDS = 3600.0  # the longest wait of a device with too many valid certificates


@dataclass(frozen=True, slots=True)
class DeviceCertificate:
    """A certificate for a device, with everything that the device should know about it."""

    device_id: str
    chain: bytes
    authority: bytes  # the authorities that the device should believe
    renew_after_seconds: float
    lifetime_seconds: float


class DeviceEnrolment:
    """Issues certificates to devices. Methods block: call them in a thread."""

    def __init__(
        self,
        engine: Engine,
        fleet: FleetRecords,
        tokens: Tokens,
        nonces: Nonces,
        issuer: Authority | None,
        authority: Callable[[], bytes],
        certificate_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """`authority` reads the believed authorities. Without an issuer, nobody can enrol here."""
        self._engine = engine
        self._fleet = fleet
        self._tokens = tokens
        self._nonces = nonces
        self._issuer = issuer
        self._authority = authority
        self._certificate_seconds = certificate_seconds
        self._clock = clock

    def begin(self) -> bytes:
        """Make a nonce."""
        return self._nonces.make()

    def enrol(
        self, token: str, nonce: bytes, wished_id: str, csr: bytes, signature: bytes
    ) -> DeviceCertificate:
        """Make the caller a device of the fleet. Without a token, a device must own the key."""
        self.require_issuer()
        if wished_id:
            require_id(wished_id, "device_id")
        self._nonces.require(nonce)
        request = Request(csr)
        request.require_signature(nonce, signature)
        with reading(self._engine) as session:  # so that strangers never block writers
            if token:
                self._tokens.enrolling(session, token)
            else:
                self._device_of_key(session, wished_id, request.key_sha256)
        with transaction(self._engine) as session:
            self._nonces.spend(session, nonce)
            if token:
                device_id = self._device_of_token(session, token, wished_id, request.key_sha256)
            else:
                device_id = self._device_of_key(session, wished_id, request.key_sha256)
            return self._issue(session, member(session, device_id), request)

    def renew(self, device_id: str, shown: Certificate, csr: bytes) -> DeviceCertificate:
        """Issue another certificate to a device that showed one.

        The gate may have admitted the device a moment ago, so this checks the database of now.
        """
        self.require_issuer()
        request = Request(csr)
        with transaction(self._engine) as session:
            row = member(session, device_id)
            if row.revoked:
                raise _revoked(device_id)
            exclusions_of(session, row, shown.serial).require_alive(shown)
            if row.enrolled_at and shown.key_sha256 not in self._keys(session, device_id):
                raise NotAllowed(
                    f"device {device_id!r} has had another key since; to put this key in its "
                    f"place, make a token for it: hfmds pki enrol-token --device {device_id}"
                )
            self._require_key_not_revoked(session, device_id, request.key_sha256)
            return self._issue(session, row, request, shown.key_sha256)

    def require_issuer(self) -> Authority:
        """Return the issuer; WrongState if nobody can get a certificate here."""
        if self._issuer is None:
            raise WrongState(
                "this coordinator has no device issuer, so it makes no certificates; set "
                "HFMDS_ISSUER_CERTIFICATE and HFMDS_ISSUER_KEY to enrol devices here"
            )
        return self._issuer

    # --- the identity ---------------------------------------------------------------------------

    def _device_of_token(self, session: Session, text: str, wished_id: str, key_sha256: str) -> str:
        token = self._tokens.enrolling(session, text)
        used_by = self._tokens.device_of(session, token, key_sha256)
        device_id = used_by or wished_id or _choose(token)
        if wished_id not in ("", device_id) or not terms_of(token).admits(device_id):
            raise NotAllowed(f"enrolment token {token.token_id} is not for device id {wished_id!r}")
        self._require_free_place(session, device_id, key_sha256, token, again=used_by is not None)
        self._require_key_not_revoked(session, device_id, key_sha256)
        if used_by is not None:  # the device did not hear the answer, and nothing changes
            return device_id
        self._tokens.spend(session, token, key_sha256, device_id)
        self._supersede_other_keys(session, device_id, key_sha256)
        row = member(session, device_id)
        row.token_id, row.enrolled_at = token.token_id, self._clock()
        if row.revoked:
            row.revoked, row.reason = False, ""
        details = {"device": device_id, "token": token.token_id, "key": key_sha256}
        self._fleet.append(session, EventKind.DEVICE_ENROLLED, **details)
        return device_id

    def _require_free_place(
        self, session: Session, device_id: str, key_sha256: str, token: TokenRow, *, again: bool
    ) -> None:
        """Protect the place of an existing or revoked device against other keys."""
        row, keys = session.get(MemberRow, device_id), self._keys(session, device_id)
        named = token.device_id == device_id
        # A token from before a revocation must not undo the revocation.
        if row is not None and row.revoked and not (named and token.created_at > row.revoked_at):
            raise _revoked(device_id)
        if again and key_sha256 not in keys:
            raise NotAllowed(
                f"enrolment token {token.token_id} was used by device {device_id!r}, which has "
                f"had another key since"
            )
        known = bool(keys) or session.get(DeviceRow, device_id) is not None
        if known and not named and key_sha256 not in keys:
            raise Conflict(
                f"device {device_id!r} exists with another key; to put this key in its place, "
                f"make a token for it: hfmds pki enrol-token --device {device_id}"
            )

    def _device_of_key(self, session: Session, device_id: str, key_sha256: str) -> str:
        if not device_id:
            raise InvalidInput("without a token, device_id must name the device")
        row = session.get(MemberRow, device_id)
        revoked = row is not None and row.revoked
        # Strangers ask, too. Only an owner of one of the device's keys hears of the revocation.
        if revoked and key_sha256 in self._revoked_keys(session, device_id):
            raise _revoked(device_id)
        if revoked or key_sha256 not in self._keys(session, device_id):
            raise NotAllowed(
                f"device {device_id!r} is not known by this key, or was away for too long; enrol "
                f"it with a token: hfmds pki enrol-token --device {device_id}"
            )
        return device_id

    def _keys(self, session: Session, device_id: str) -> set[str]:
        """Return the keys by which a device is known."""
        since = self._clock() - _KNOWN_BY_KEY_SECONDS
        of_device = CertificateRow.device_id == device_id
        keys = select(CertificateRow.key_sha256).where(
            of_device,
            CertificateRow.until > since,
            CertificateRow.issued_at > _revoked_at(session, device_id),
            ~CertificateRow.superseded,
        )
        return set(session.scalars(keys))

    def _revoked_keys(self, session: Session, device_id: str) -> set[str]:
        """Return the keys that a device had when it was revoked."""
        of_device = CertificateRow.device_id == device_id
        before = CertificateRow.issued_at <= _revoked_at(session, device_id)
        return set(session.scalars(select(CertificateRow.key_sha256).where(of_device, before)))

    def _require_key_not_revoked(self, session: Session, device_id: str, key_sha256: str) -> None:
        if key_sha256 in self._revoked_keys(session, device_id):
            raise NotAllowed(
                f"device {device_id!r} had this key when it was revoked, and somebody else may "
                f"have it; let the device make another key"
            )

    def _supersede_other_keys(self, session: Session, device_id: str, key_sha256: str) -> None:
        """Refuse further certificates to the holders of the device's other keys."""
        others = update(CertificateRow).where(
            CertificateRow.device_id == device_id,
            CertificateRow.key_sha256 != key_sha256,
            CertificateRow.issued_at > _revoked_at(session, device_id),
        )
        session.execute(others.values(superseded=True))

    # --- the certificate ------------------------------------------------------------------------

    def _issue(
        self, session: Session, row: MemberRow, request: Request, shown_key_sha256: str = ""
    ) -> DeviceCertificate:
        issuer, now = self.require_issuer(), self._clock()
        identity = Identity(Kind.DEVICE, row.device_id)
        request.require_identity(identity)
        lifetime = min(self._certificate_seconds, issuer.ends.timestamp() - now)
        if lifetime <= 0:
            raise WrongState("the device issuer's own certificate has expired; make another one")
        # It begins after all revoked certificates, and early enough for servers with slow clocks.
        begins = max(now - CLOCKS_DIFFER.total_seconds(), dead_until(row) + 1)
        signed = issuer.issue(
            request.key,
            identity,
            datetime.fromtimestamp(begins, UTC),
            datetime.fromtimestamp(now + lifetime, UTC),
        )
        row.certified_until = max(row.certified_until, now + lifetime)
        self._clean_up(session, row.device_id, shown_key_sha256)
        session.add(
            CertificateRow(
                serial=signed.serial,
                device_id=row.device_id,
                key_sha256=request.key_sha256,
                issued_at=now,
                until=now + lifetime,
            )
        )
        return DeviceCertificate(
            row.device_id,
            signed.pem,
            self._authority(),
            lifetime * random.uniform(_RENEW_FROM, _RENEW_TO),  # noqa: S311 (no secret)
            lifetime,
        )

    def _clean_up(self, session: Session, device_id: str, shown_key_sha256: str) -> None:
        """Keep the device known by its newest certificate, and by the key that it showed.

        Answers get lost, so the device may not have the later certificates. Other certificates
        stay in the database while they are valid: a revocation of one revokes its key.
        """
        newest_first = (
            select(CertificateRow)
            .where(
                CertificateRow.device_id == device_id,
                CertificateRow.issued_at > _revoked_at(session, device_id),
            )
            .order_by(CertificateRow.issued_at.desc())
        )
        rows = session.scalars(newest_first).all()
        current = [row for row in rows if not row.superseded]
        shown = [row for row in current if row.key_sha256 == shown_key_sha256]
        kept = {row.serial for row in (*current[:1], *shown[:1])}
        ended = ended_on_all_clocks(self._clock())
        valid_until = [row.until for row in rows if row.until > ended]
        for row in rows:
            if row.serial in kept:
                continue
            row.superseded = True
            if row.until <= ended:
                session.delete(row)
        if len(valid_until) >= _MOST_VALID:
            # The device works with one of them, so the refusal must not be final.
            raise Unavailable(
                f"device {device_id!r} has {len(valid_until)} valid certificates and asks for "
                f"more; somebody else may have its key: hfmds pki revoke {device_id}, and enrol it "
                f"again",
                retry_after_seconds=min(max(min(valid_until) - ended, 1.0), _ASK_AGAIN_SECONDS),
            )


def _revoked_at(session: Session, device_id: str) -> float:
    row = session.get(MemberRow, device_id)
    return row.revoked_at if row is not None else 0.0


def _choose(token: TokenRow) -> str:
    return token.device_id or f"{token.prefix or 'device-'}{secrets.token_hex(6)}"


def _revoked(device_id: str) -> NotAllowed:
    return NotAllowed(
        f"device {device_id!r} was revoked; to let it in again, make a token for it: "
        f"hfmds pki enrol-token --device {device_id}"
    )
