"""Tables of tokens and members of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table

from hfmds.cli.tables.layout import add_row, new_table
from hfmds.cli.text import NOTHING, ago, seconds
from hfmds.domain.administration.fleet import AdminTerms, Member, TokenRecord


def tokens_table(tokens: Sequence[TokenRecord], now: datetime) -> Table:
    """Return one row for each token."""
    table = new_table()
    for name in ("token", "name", "lets in"):
        table.add_column(name, overflow="fold")
    for name in ("used", "ends in"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("created by", overflow="fold")
    for token in tokens:
        remaining = seconds(max(0.0, (token.expires_at - now).total_seconds()))
        add_row(table, token.token_id, token.name, *_terms(token), remaining, token.created_by)
    return table


def members_table(members: Sequence[Member], now: datetime) -> Table:
    """Return one row for each device."""
    table = new_table()
    table.add_column("device", overflow="fold")
    for name in ("standing", "enrolled", "certificate ends in"):
        table.add_column(name, no_wrap=True)
    table.add_column("certificate", overflow="fold")
    table.add_column("reason", overflow="fold")
    for member in members:
        add_row(
            table,
            member.device_id,
            standing(member),
            ago(member.enrolled_at, now) if member.enrolled_at else NOTHING,
            _left(member.certificate_until, now),
            member.serial or NOTHING,
            member.reason or NOTHING,
            style="" if standing(member) == "member" else "yellow",
        )
    return table


def standing(member: Member) -> str:
    """Return the standing of a member in one word."""
    if member.revoked:
        return "revoked"
    return "quarantine" if member.quarantined else "member"


def _terms(token: TokenRecord) -> tuple[str, str]:
    terms = token.terms
    if isinstance(terms, AdminTerms):
        return f"a person, as {terms.role.value}", NOTHING
    holder = f"device {terms.device_id}" if terms.device_id else f"devices {terms.prefix}*"
    return holder, f"{terms.used}/{terms.uses}"


def _left(until: datetime | None, now: datetime) -> str:
    if until is None:
        return NOTHING
    remaining = (until - now).total_seconds()
    return seconds(remaining) if remaining > 0 else "expired"
