"""Tokens let in devices that want a certificate, and people who have none.

The database has only a hash of a token's secret, so nobody can read a token there. The command that
makes a token shows it once. The coordinator sees the secret when somebody uses the token.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import Engine, delete, func, select
from sqlalchemy.orm import Session

from coordinator.identity.fleet_records import FleetRecords
from coordinator.records.tables import TokenRow, TokenUseRow
from hfmds.domain.administration.events import EventKind
from hfmds.domain.administration.fleet import (
    AdminTerms,
    EnrolmentTerms,
    NewToken,
    Role,
    TokenRecord,
)
from hfmds.errors import Conflict, NotAllowed, NotFound, WrongState
from hfmds.pki.token_text import Token, TokenKind, new_token, parse_token
from hfmds.service.security.caller import Caller
from hfmds.service.security.certificates import Certificate
from hfmds.service.security.identity import Identity, Kind
from hfmds.storage.database import reading, transaction

# An unknown token is compared with this one, so that the answer takes as long.
_NOBODYS = new_token(TokenKind.ADMIN).secret_sha256


class Tokens:
    """The fleet's tokens. Methods block: call them in a thread."""

    def __init__(self, engine: Engine, fleet: FleetRecords, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._fleet = fleet
        self._clock = clock

    def create(self, token: NewToken, by: str) -> TokenRecord:
        """Store a token; a repeated call with the same terms changes nothing."""
        now, fresh = self._clock(), _row_of(token)
        with transaction(self._engine) as session:
            _forget_old(session, now)
            row = session.get(TokenRow, token.token_id)
            if row is None:
                row = fresh
                row.created_at, row.created_by = now, by
                row.expires_at = now + token.lifetime_seconds
                session.add(row)
                session.flush()
                self._fleet.append(
                    session,
                    EventKind.TOKEN_CREATED,
                    token=row.token_id,
                    name=row.name,
                    role=row.role or "device",
                    device=row.device_id,
                    by=by,
                )
            elif not _same_terms(row, fresh):
                raise Conflict(f"token {token.token_id} exists with other terms; choose another id")
            elif row.revoked:
                raise WrongState(f"token {token.token_id} was revoked; make another one")
            return _record(session, row)

    def list(self) -> list[TokenRecord]:
        """List the tokens that have not ended, by id."""
        with reading(self._engine) as session:
            alive = select(TokenRow).where(
                TokenRow.expires_at > self._clock(), TokenRow.revoked.is_(False)
            )
            rows = session.scalars(alive.order_by(TokenRow.token_id)).all()
            return [_record(session, row) for row in rows]

    def revoke(self, token_id: str, by: str, *, of_people: bool = True) -> None:
        """End a token; parties that it let in stay in. Only owners end tokens `of_people`."""
        with transaction(self._engine) as session:
            row = session.get(TokenRow, token_id)
            if row is None:
                raise NotFound(f"there is no token {token_id}; `hfmds pki tokens` lists the tokens")
            if row.kind == TokenKind.ADMIN.value and not of_people:
                raise NotAllowed(f"token {token_id} belongs to a person: only an owner may end it")
            if not row.revoked:
                row.revoked = True
                self._fleet.note_change(session)
                self._fleet.append(session, EventKind.TOKEN_REVOKED, token=token_id, by=by)

    def revoked(self) -> frozenset[str]:
        """Return the tokens that were revoked before their end, which is still to come."""
        over = select(TokenRow.token_id).where(
            TokenRow.revoked, TokenRow.expires_at > self._clock()
        )
        with reading(self._engine) as session:
            return frozenset(session.scalars(over))

    def admin(self, text: str) -> Identity | None:
        """Return the person of a valid admin token."""
        return self.holder(text).identity

    def holder(self, text: str) -> Caller:
        """Return the caller that holds the token, which stands for a certificate."""
        token = parse_token(text, TokenKind.ADMIN)
        if token is None:
            return Caller()
        with reading(self._engine) as session:
            row = _of(session, token)
            if row is None or row.revoked or row.expires_at <= self._clock():
                return Caller()
            identity = Identity(Kind(f"admin/{Role(row.role)}"), row.name)
            begins, ends = int(row.created_at), int(row.expires_at) + 1
            return Caller(identity, Certificate(identity, row.token_id, begins, ends))

    # --- within a transaction -------------------------------------------------------------------

    def enrolling(self, session: Session, text: str) -> TokenRow:
        """Return the enrolment token of a new device; NotAllowed if it is not valid."""
        token = parse_token(text, TokenKind.ENROL)
        row = _of(session, token) if token else None
        if row is None:
            raise NotAllowed("the enrolment token is not one of this fleet")
        if row.revoked or row.expires_at <= self._clock():
            raise NotAllowed(f"enrolment token {row.token_id} has ended; ask for another one")
        return row

    def device_of(self, session: Session, row: TokenRow, key_sha256: str) -> str | None:
        """Return the device that used the token with this key; None if none did."""
        use = session.get(TokenUseRow, (row.token_id, key_sha256))
        return use.device_id if use else None

    def spend(self, session: Session, row: TokenRow, key_sha256: str, device_id: str) -> None:
        """Count a use of the token; NotAllowed if it has no uses left."""
        if _used(session, row.token_id) >= row.uses:
            raise NotAllowed(f"enrolment token {row.token_id} is spent; ask for another one")
        session.add(TokenUseRow(token_id=row.token_id, key_sha256=key_sha256, device_id=device_id))


def terms_of(row: TokenRow) -> EnrolmentTerms:
    """Return the terms of an enrolment token."""
    return EnrolmentTerms(row.uses, row.device_id, row.prefix)


def _of(session: Session, token: Token) -> TokenRow | None:
    row = session.get(TokenRow, token.token_id)
    known = row is not None and row.kind == token.kind.value
    same = token.is_of(row.secret_sha256 if row is not None and known else _NOBODYS)
    return row if known and same else None


def _row_of(token: NewToken) -> TokenRow:
    terms = token.terms
    row = TokenRow(
        token_id=token.token_id,
        secret_sha256=token.secret_sha256,
        name=token.name,
        role="",
        uses=0,
        device_id="",
        prefix="",
        revoked=False,
    )
    if isinstance(terms, AdminTerms):
        row.kind, row.role = TokenKind.ADMIN.value, terms.role.value
    else:
        row.kind, row.uses = TokenKind.ENROL.value, terms.uses
        row.device_id, row.prefix = terms.device_id, terms.prefix
    return row


def _same_terms(row: TokenRow, other: TokenRow) -> bool:
    """Compare all terms but the end, which depends on the time of the first call."""
    names = ("secret_sha256", "kind", "name", "role", "uses", "device_id", "prefix")
    return all(getattr(row, name) == getattr(other, name) for name in names)


def _record(session: Session, row: TokenRow) -> TokenRecord:
    terms: EnrolmentTerms | AdminTerms
    if row.kind == TokenKind.ADMIN.value:
        terms = AdminTerms(Role(row.role))
    else:
        used = _used(session, row.token_id)
        terms = EnrolmentTerms(row.uses, row.device_id, row.prefix, used)
    return TokenRecord(
        row.token_id,
        row.name,
        datetime.fromtimestamp(row.created_at, UTC),
        row.created_by,
        datetime.fromtimestamp(row.expires_at, UTC),
        terms,
    )


def _used(session: Session, token_id: str) -> int:
    uses = select(func.count()).select_from(TokenUseRow).where(TokenUseRow.token_id == token_id)
    return session.scalar(uses) or 0


def _forget_old(session: Session, now: float) -> None:
    old = select(TokenRow.token_id).where(TokenRow.expires_at <= now)
    session.execute(delete(TokenUseRow).where(TokenUseRow.token_id.in_(old)))
    session.execute(delete(TokenRow).where(TokenRow.expires_at <= now))
