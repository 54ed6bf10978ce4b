"""Certificates for devices: the first by a token, the next by the last certificate or by the key.

A device has one key, and a key belongs to one device. Only a token that names the device gives it
another key. A replaced or revoked key gets no certificate again.
"""

from __future__ import annotations

import secrets

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.identity.device_issuer import DeviceCertificate, DeviceIssuer
from coordinator.identity.fleet_records import FleetRecords
from coordinator.identity.members import end_key, is_known, member
from coordinator.identity.nonces import Nonces
from coordinator.identity.tokens import Tokens, terms_of
from coordinator.records.tables import DeadKeyRow, MemberRow, RevokedCertificateRow, TokenRow
from hfmds.domain.administration.events import EventKind
from hfmds.domain.devices import require_id
from hfmds.errors import Conflict, InvalidInput, NotAllowed
from hfmds.pki.certificate_requests import Request
from hfmds.service.security.certificates import Certificate
from hfmds.service.security.exclusions import end_of_key

_KNOWN_BY_KEY_SECONDS = 90 * 24 * 3600.0  # after the end of a device's last certificate


class DeviceEnrolment:
    """Decides which devices get a certificate. Methods block: call them in a thread."""

    def __init__(
        self, fleet: FleetRecords, tokens: Tokens, nonces: Nonces, issuer: DeviceIssuer
    ) -> None:
        self._fleet = fleet
        self._tokens = tokens
        self._nonces = nonces
        self.issuer = issuer

    def begin(self) -> bytes:
        """Make a nonce."""
        return self._nonces.make()

    def enrol(
        self, token: str, nonce: bytes, wished_id: str, csr: bytes, signature: bytes
    ) -> DeviceCertificate:
        """Make the caller a device of the fleet. Without a token, it must own a device's key."""
        self.issuer.require()
        if wished_id:
            require_id(wished_id, "device_id")
        self._nonces.require(nonce)
        request = Request(csr)
        request.require_signature(nonce, signature)
        with self._fleet.read_session() as session:  # so that strangers never block writers
            if token:
                self._tokens.enrolling(session, token)
            else:
                self._device_of_key(session, wished_id, request.key_sha256)
        with self._fleet.write_session() as session:
            self._nonces.spend(session, nonce)
            if token:
                row = self._device_of_token(session, token, wished_id, request.key_sha256)
            else:
                row = self._device_of_key(session, wished_id, request.key_sha256)
            return self._certify(session, row, request)

    def renew(self, device_id: str, shown: Certificate, csr: bytes) -> DeviceCertificate:
        """Issue another certificate to a device that showed one.

        The gate may have admitted the device a moment ago, so this checks the database of now.
        """
        self.issuer.require()
        request = Request(csr)
        if request.key_sha256 != shown.key_sha256:
            raise InvalidInput(
                f"the csr has another key than the certificate; a device gets another key by a "
                f"token: hfmds pki enrol-token --device {device_id}"
            )
        with self._fleet.write_session() as session:
            row = member(session, device_id)
            if row.revoked:
                raise _revoked(device_id)
            if session.get(RevokedCertificateRow, shown.serial) is not None:
                raise NotAllowed(f"certificate {shown.serial} was revoked")
            # Another issuer may have given several keys to a device that never enrolled.
            if row.enrolled_at and row.key_sha256 != shown.key_sha256:
                raise NotAllowed(
                    f"device {device_id!r} has had another key since; to put this key in its "
                    f"place, make a token for it: hfmds pki enrol-token --device {device_id}"
                )
            return self._certify(session, row, request)

    def _device_of_token(
        self, session: Session, text: str, wished_id: str, key_sha256: str
    ) -> MemberRow:
        token = self._tokens.enrolling(session, text)
        device_id = _owner(session, key_sha256) or wished_id or _choose(token)
        if wished_id not in ("", device_id):
            raise NotAllowed(
                f"device {device_id!r} has this key, and {wished_id!r} needs another one: delete "
                f"identity/ in its state folder, which may be a copy"
            )
        if not terms_of(token).admits(device_id):
            raise NotAllowed(f"enrolment token {token.token_id} is not for device id {device_id!r}")
        is_new, named = not is_known(session, device_id), token.device_id == device_id
        row = member(session, device_id)
        if row.revoked and not named:
            raise _revoked(device_id)
        if row.key_sha256 == key_sha256 and row.token_id == token.token_id:
            return row  # the device did not hear the answer, and nothing changes
        if not is_new and not named and row.key_sha256 != key_sha256:
            raise Conflict(
                f"device {device_id!r} exists with another key; to put this key in its place, "
                f"make a token for it: hfmds pki enrol-token --device {device_id}"
            )
        self._tokens.spend(token)
        row.token_id, row.enrolled_at = token.token_id, self._fleet.now()
        if row.revoked:  # the token is newer, because the revocation ended the tokens of its time
            row.revoked, row.reason = False, ""
        details = {"device": device_id, "token": token.token_id, "key": key_sha256}
        self._fleet.append(session, EventKind.DEVICE_ENROLLED, **details)
        return row

    def _device_of_key(self, session: Session, device_id: str, key_sha256: str) -> MemberRow:
        if not device_id:
            raise InvalidInput("without a token, device_id must name the device")
        row = session.get(MemberRow, device_id)
        # Strangers ask, too. Only the owner of the device's key hears of the revocation.
        if row is not None and row.key_sha256 == key_sha256:
            if row.revoked:
                raise _revoked(device_id)
            if row.certified_until + _KNOWN_BY_KEY_SECONDS > self._fleet.now():
                return row
        raise NotAllowed(
            f"device {device_id!r} is not known by this key, or was away for too long; enrol it "
            f"with a token: hfmds pki enrol-token --device {device_id}"
        )

    def _certify(self, session: Session, row: MemberRow, request: Request) -> DeviceCertificate:
        """Issue the certificate, and make its key the only one of the device."""
        key_sha256, now = request.key_sha256, self._fleet.now()
        if session.get(DeadKeyRow, end_of_key(key_sha256)) is not None:
            raise NotAllowed(
                f"this key of device {row.device_id!r} was revoked or replaced, and somebody else "
                f"may have it; delete identity/ in the device's state folder, so that it makes "
                f"another key, and enrol it with a token: hfmds pki enrol-token --device "
                f"{row.device_id}"
            )
        if _owner(session, key_sha256) not in (None, row.device_id):
            raise NotAllowed(f"another device than {row.device_id!r} has this key")
        issued = self.issuer.issue(request, row.device_id, now, row.revoked_at)
        if row.key_sha256 != key_sha256:
            end_key(session, row.key_sha256)
            row.key_sha256 = key_sha256
        row.serial, row.certified_at = issued.serial, now
        row.certified_until = now + issued.lifetime_seconds
        return issued


def _owner(session: Session, key_sha256: str) -> str | None:
    """Return the device that has this key."""
    return session.scalar(select(MemberRow.device_id).where(MemberRow.key_sha256 == key_sha256))


def _choose(token: TokenRow) -> str:
    return token.device_id or f"{token.prefix or 'device-'}{secrets.token_hex(6)}"


def _revoked(device_id: str) -> NotAllowed:
    return NotAllowed(
        f"device {device_id!r} was revoked; to let it in again, make a token for it: "
        f"hfmds pki enrol-token --device {device_id}"
    )
