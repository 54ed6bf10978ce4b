"""Devices get certificates: the first by a token, the next by the one before or by their key.

What is checked, in this order: the nonce is fresh; the request is one of a key, and signed by it
together with the nonce; the token is good, or the key is the device's; the device was not shut out
since; and nobody takes another device's place.
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
from coordinator.identity.revocation_cleanup import surely
from coordinator.identity.tokens import Tokens, terms_of
from coordinator.records.tables import CertificateRow, DeviceRow, MemberRow, TokenRow
from hfmds.domain.devices import require_id
from hfmds.domain.events import EventKind
from hfmds.errors import Conflict, InvalidInput, NotAllowed, Unavailable, WrongState
from hfmds.pki.authority import CLOCKS_DIFFER, Authority
from hfmds.pki.certificate_requests import Request
from hfmds.service.security.certificates import Certificate
from hfmds.service.security.identity import Identity, Kind
from hfmds.storage.database import reading, transaction

_KNOWN_BY_KEY_SECONDS = 90 * 24 * 3600.0  # after the end of a device's last certificate
_RENEW_FROM, _RENEW_TO = 0.6, 0.7  # of a lifetime; not all at once that enrolled at once
# Certificates of one device, all in the books. It needs two; one that forgets the time whenever it
# starts asks at each start.
_MOST_GOOD = 200
_ASK_AGAIN_SECONDS = 3600.0  # at the latest, though none has run out by then


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate for a device."""

    device_id: str
    chain: bytes
    authority: bytes  # whom the device should believe
    renew_after_seconds: float
    lifetime_seconds: float


class Enrolment:
    """The device issuer at work. Methods block: call them in a thread."""

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
        """`authority` reads what all parties believe; no issuer: nobody can enrol here."""
        self._engine = engine
        self._fleet = fleet
        self._tokens = tokens
        self._nonces = nonces
        self._issuer = issuer
        self._authority = authority
        self._certificate_seconds = certificate_seconds
        self._clock = clock

    def begin(self) -> bytes:
        """A nonce."""
        return self._nonces.make()

    def enrol(
        self, token: str, nonce: bytes, wished_id: str, csr: bytes, signature: bytes
    ) -> Issued:
        """Make the caller a device of the fleet; without a token, its key must be a device's."""
        self.require_issuer()
        if wished_id:
            require_id(wished_id, "device_id")
        self._nonces.require(nonce)
        request = Request(csr)
        request.require_signature(nonce, signature)
        with reading(self._engine) as session:  # strangers must not hold up who writes
            if token:
                self._tokens.enrolling(session, token)
            else:
                self._by_key(session, wished_id, request.key_sha256)
        with transaction(self._engine) as session:
            self._nonces.spend(session, nonce)
            if token:
                device_id = self._by_token(session, token, wished_id, request.key_sha256)
            else:
                device_id = self._by_key(session, wished_id, request.key_sha256)
            return self._issue(session, member(session, device_id), request)

    def renew(self, device_id: str, shown: Certificate, csr: bytes) -> Issued:
        """Another certificate for a device that has shown one, by the books of now.

        The gate may have let it in by those of a moment ago.
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
                    f"device {device_id!r} has another key since; to put this one in its place, "
                    f"make a token for it: hfmds pki enrol-token --device {device_id}"
                )
            self._require_unspoilt(session, device_id, request.key_sha256)
            return self._issue(session, row, request, shown.key_sha256)

    def require_issuer(self) -> Authority:
        """WrongState if nobody can get a certificate here."""
        if self._issuer is None:
            raise WrongState(
                "this coordinator has no device issuer: certificates come from elsewhere; set "
                "HFMDS_ISSUER_CERTIFICATE and HFMDS_ISSUER_KEY to enrol devices here"
            )
        return self._issuer

    # --- who it is ------------------------------------------------------------------------------

    def _by_token(self, session: Session, text: str, wished_id: str, key_sha256: str) -> str:
        token = self._tokens.enrolling(session, text)
        used_by = self._tokens.device_of(session, token, key_sha256)
        device_id = used_by or wished_id or _choose(token)
        if wished_id not in ("", device_id) or not terms_of(token).admits(device_id):
            raise NotAllowed(f"enrolment token {token.token_id} is not for device id {wished_id!r}")
        self._require_place(session, device_id, key_sha256, token, again=used_by is not None)
        self._require_unspoilt(session, device_id, key_sha256)
        if used_by is not None:  # it has not heard the answer; nothing is new
            return device_id
        self._tokens.spend(session, token, key_sha256, device_id)
        self._forget_other_keys(session, device_id, key_sha256)
        row = member(session, device_id)
        row.token_id, row.enrolled_at = token.token_id, self._clock()
        if row.revoked:
            row.revoked, row.reason = False, ""
        told = {"device": device_id, "token": token.token_id, "key": key_sha256}
        self._fleet.append(session, EventKind.DEVICE_ENROLLED, **told)
        return device_id

    def _require_place(
        self, session: Session, device_id: str, key_sha256: str, token: TokenRow, *, again: bool
    ) -> None:
        """Nobody takes the place of a device that exists, or was shut out, without leave to."""
        row, keys = session.get(MemberRow, device_id), self._keys(session, device_id)
        named = token.device_id == device_id
        # Made later than the revocation: an old token must not undo it.
        if row is not None and row.revoked and not (named and token.created_at > row.revoked_at):
            raise _revoked(device_id)
        if again and key_sha256 not in keys:
            raise NotAllowed(
                f"enrolment token {token.token_id} was used by device {device_id!r}, which has "
                f"another key since"
            )
        known = bool(keys) or session.get(DeviceRow, device_id) is not None
        if known and not named and key_sha256 not in keys:
            raise Conflict(
                f"there is a device {device_id!r} with another key; to put this one in its place, "
                f"make a token for it: hfmds pki enrol-token --device {device_id}"
            )

    def _by_key(self, session: Session, device_id: str, key_sha256: str) -> str:
        if not device_id:
            raise InvalidInput("without a token, device_id must say which device it is")
        row = session.get(MemberRow, device_id)
        revoked = row is not None and row.revoked
        # Only who has a key of the device is told that it was revoked: strangers ask, too.
        if revoked and key_sha256 in self._lost_keys(session, device_id):
            raise _revoked(device_id)
        if revoked or key_sha256 not in self._keys(session, device_id):
            raise NotAllowed(
                f"device {device_id!r} is not known by this key, or was away for too long; enrol "
                f"it with a token: hfmds pki enrol-token --device {device_id}"
            )
        return device_id

    def _keys(self, session: Session, device_id: str) -> set[str]:
        """The keys by which a device is known."""
        since = self._clock() - _KNOWN_BY_KEY_SECONDS
        of_device = CertificateRow.device_id == device_id
        keys = select(CertificateRow.key_sha256).where(
            of_device,
            CertificateRow.until > since,
            CertificateRow.issued_at > _revoked_at(session, device_id),
            ~CertificateRow.superseded,
        )
        return set(session.scalars(keys))

    def _lost_keys(self, session: Session, device_id: str) -> set[str]:
        """Those it had when it was revoked."""
        of_device = CertificateRow.device_id == device_id
        before = CertificateRow.issued_at <= _revoked_at(session, device_id)
        return set(session.scalars(select(CertificateRow.key_sha256).where(of_device, before)))

    def _require_unspoilt(self, session: Session, device_id: str, key_sha256: str) -> None:
        if key_sha256 in self._lost_keys(session, device_id):
            raise NotAllowed(
                f"device {device_id!r} had this key before it was revoked, and somebody else may "
                f"have it; let the device make another one"
            )

    def _forget_other_keys(self, session: Session, device_id: str, key_sha256: str) -> None:
        """Whoever was this device until now gets no further certificate."""
        others = update(CertificateRow).where(
            CertificateRow.device_id == device_id,
            CertificateRow.key_sha256 != key_sha256,
            CertificateRow.issued_at > _revoked_at(session, device_id),
        )
        session.execute(others.values(superseded=True))

    # --- its certificate ------------------------------------------------------------------------

    def _issue(
        self, session: Session, row: MemberRow, request: Request, shown_key_sha256: str = ""
    ) -> Issued:
        issuer, now = self.require_issuer(), self._clock()
        identity = Identity(Kind.DEVICE, row.device_id)
        request.require_identity(identity)
        lifetime = min(self._certificate_seconds, issuer.ends.timestamp() - now)
        if lifetime <= 0:
            raise WrongState("the device issuer's own certificate has run out; make another one")
        # Begins after all that is dead, and else so that no server's clock is too slow for it.
        begins = max(now - CLOCKS_DIFFER.total_seconds(), dead_until(row) + 1)
        issued = issuer.issue(
            request.key,
            identity,
            datetime.fromtimestamp(begins, UTC),
            datetime.fromtimestamp(now + lifetime, UTC),
        )
        row.certified_until = max(row.certified_until, now + lifetime)
        self._make_room(session, row.device_id, shown_key_sha256)
        session.add(
            CertificateRow(
                serial=issued.serial,
                device_id=row.device_id,
                key_sha256=request.key_sha256,
                issued_at=now,
                until=now + lifetime,
            )
        )
        return Issued(
            row.device_id,
            issued.pem,
            self._authority(),
            lifetime * random.uniform(_RENEW_FROM, _RENEW_TO),  # noqa: S311 (no secret)
            lifetime,
        )

    def _make_room(self, session: Session, device_id: str, shown_key_sha256: str) -> None:
        """Have the device known by the newest of its certificates, and of the key it has shown.

        Answers may have been lost, so it may not know of later ones. The others stay in the books
        while they are good: who revokes one of them means all that have its key.
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
        over = surely(self._clock())
        good = [row.until for row in rows if row.until > over]
        for row in rows:
            if row.serial in kept:
                continue
            row.superseded = True
            if row.until <= over:
                session.delete(row)
        if len(good) >= _MOST_GOOD:
            # One of them is what the device works with, so it must not take this for its end.
            raise Unavailable(
                f"device {device_id!r} has {len(good)} certificates that are good, and asks for "
                f"more; somebody else may have its key: hfmds pki revoke {device_id}, and enrol it "
                f"anew",
                retry_after_seconds=min(max(min(good) - over, 1.0), _ASK_AGAIN_SECONDS),
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
