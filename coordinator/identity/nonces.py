"""Nonces of enrolment: a signature over one is fresh, whatever the device's clock says.

A nonce carries its own end, and a mark that only coordinators of this fleet can make. So the
database stores nothing for a nonce that strangers ask for. It stores used nonces until they end.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable

from sqlalchemy import delete
from sqlalchemy.orm import Session

from coordinator.records.tables import SpentNonceRow
from hfmds.errors import TooLate

LIFETIME_SECONDS = 300.0

_FORM = struct.Struct(">d16s32s")  # its end, random bytes, the mark


class Nonces:
    """Makes nonces, and accepts each one once."""

    def __init__(self, key: bytes, clock: Callable[[], float]) -> None:
        self._key = key
        self._clock = clock

    def make(self) -> bytes:
        """Make a nonce that every coordinator of the fleet accepts for a few minutes."""
        ends, chosen = self._clock() + LIFETIME_SECONDS, secrets.token_bytes(16)
        return _FORM.pack(ends, chosen, self._mark(ends, chosen))

    def spend(self, session: Session, nonce: bytes) -> None:
        """Within a transaction: use up the nonce; TooLate if it is foreign, over, or used."""
        ends, chosen = self.require(nonce)
        now, name = self._clock(), chosen.hex()
        session.execute(delete(SpentNonceRow).where(SpentNonceRow.expires_at <= now))
        if session.get(SpentNonceRow, name) is not None:
            raise _unknown()
        session.add(SpentNonceRow(nonce=name, expires_at=ends))

    def require(self, nonce: bytes) -> tuple[float, bytes]:
        """Return the nonce's end and its random part; TooLate if it is foreign or over."""
        if len(nonce) != _FORM.size:
            raise _unknown()
        ends, chosen, mark = _FORM.unpack(nonce)
        if not hmac.compare_digest(mark, self._mark(ends, chosen)) or ends <= self._clock():
            raise _unknown()
        return ends, chosen

    def _mark(self, ends: float, chosen: bytes) -> bytes:
        return hmac.digest(self._key, struct.pack(">d", ends) + chosen, hashlib.sha256)


def _unknown() -> TooLate:
    return TooLate("the nonce is not of this fleet, was used, or has expired; begin again")
