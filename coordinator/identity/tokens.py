"""Tokens let in devices that want a certificate, and people who have none.

The database has only a hash of a token's secret, so nobody can read a token there. The command that
makes a token shows it once. The coordinator sees the secret when somebody uses the token.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from coordinator.identity.fleet_records import FleetRecords
from coordinator.records.tables import TokenRow
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

# An unknown token is compared with this one, so that the answer takes as long.
_NOBODYS = new_token(TokenKind.ADMIN).secret_sha256


class Tokens:
    """The fleet's tokens. Methods block: call them in a thread."""

    def __init__(self, fleet: FleetRecords) -> None:
        self._fleet = fleet

    def create(self, token: NewToken, by: str) -> TokenRecord:
        """Store a token; a repeated call with the same terms changes nothing."""
        now, fresh = self._fleet.now(), _row_of(token)
        with self._fleet.write_session() as session:
            session.execute(delete(TokenRow).where(TokenRow.expires_at <= now))
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
            return _record(row)

    def list(self) -> list[TokenRecord]:
        """List the tokens that have not ended, by id."""
        with self._fleet.read_session() as session:
            alive = select(TokenRow).where(
                TokenRow.expires_at > self._fleet.now(), TokenRow.revoked.is_(False)
            )
            rows = session.scalars(alive.order_by(TokenRow.token_id)).all()
            return [_record(row) for row in rows]

    def revoke(self, token_id: str, by: str, *, of_people: bool = True) -> None:
        """End a token; parties that it let in stay in. Only owners end tokens `of_people`."""
        with self._fleet.write_session() as session:
            row = session.get(TokenRow, token_id)
            if row is None:
                raise NotFound(f"there is no token {token_id}; `hfmds pki tokens` lists the tokens")
            if row.role and not of_people:
                raise NotAllowed(f"token {token_id} belongs to a person: only an owner may end it")
            if not row.revoked:
                row.revoked = True
                self._fleet.note_change(session)
                self._fleet.append(session, EventKind.TOKEN_REVOKED, token=token_id, by=by)

    def revoked(self) -> frozenset[str]:
        """Return the tokens that were revoked before their end, which is still to come."""
        over = select(TokenRow.token_id).where(
            TokenRow.revoked, TokenRow.expires_at > self._fleet.now()
        )
        with self._fleet.read_session() as session:
            return frozenset(session.scalars(over))

    def admin(self, text: str) -> Identity | None:
        """Return the person of a valid admin token."""
        return self.holder(text).identity

    def holder(self, text: str) -> Caller:
        """Return the caller that holds the token, which stands for a certificate."""
        token = parse_token(text, TokenKind.ADMIN)
        if token is None:
            return Caller()
        with self._fleet.read_session() as session:
            row = _of(session, token)
            if row is None or row.revoked or row.expires_at <= self._fleet.now():
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
        if row.revoked or row.expires_at <= self._fleet.now():
            raise NotAllowed(f"enrolment token {row.token_id} has ended; ask for another one")
        return row

    def spend(self, row: TokenRow) -> None:
        """Count a use of the token; NotAllowed if it has no uses left."""
        if row.used >= row.uses:
            raise NotAllowed(f"enrolment token {row.token_id} is spent; ask for another one")
        row.used += 1


def terms_of(row: TokenRow) -> EnrolmentTerms:
    """Return the terms of an enrolment token."""
    return EnrolmentTerms(row.uses, row.device_id, row.prefix, row.used)


def _of(session: Session, token: Token) -> TokenRow | None:
    row = session.get(TokenRow, token.token_id)
    known = row is not None and _kind(row) is token.kind
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
        used=0,
        device_id="",
        prefix="",
        revoked=False,
    )
    if isinstance(terms, AdminTerms):
        row.role = terms.role.value
    else:
        row.uses, row.device_id, row.prefix = terms.uses, terms.device_id, terms.prefix
    return row


def _kind(row: TokenRow) -> TokenKind:
    return TokenKind.ADMIN if row.role else TokenKind.ENROL


def _same_terms(row: TokenRow, other: TokenRow) -> bool:
    """Compare all terms but the end, which depends on the time of the first call."""
    names = ("secret_sha256", "name", "role", "uses", "device_id", "prefix")
    return all(getattr(row, name) == getattr(other, name) for name in names)


def _record(row: TokenRow) -> TokenRecord:
    terms = AdminTerms(Role(row.role)) if row.role else terms_of(row)
    return TokenRecord(
        row.token_id,
        row.name,
        datetime.fromtimestamp(row.created_at, UTC),
        row.created_by,
        datetime.fromtimestamp(row.expires_at, UTC),
        terms,
    )
