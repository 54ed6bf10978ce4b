"""Nonces: what is signed with one was signed just now, whatever a device's clock says.

A nonce carries its own end, and a mark that only this fleet's coordinators can make. So nothing is
kept of those that are asked for, however many strangers ask; only of those that were used, until
they are over.
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
    """Makes nonces, and takes each back once."""

    def __init__(self, key: bytes, clock: Callable[[], float]) -> None:
        self._key = key
        self._clock = clock

    def make(self) -> bytes:
        """One that is good for a few minutes, at every coordinator of the fleet."""
        ends, chosen = self._clock() + LIFETIME_SECONDS, secrets.token_bytes(16)
        return _FORM.pack(ends, chosen, self._mark(ends, chosen))

    def spend(self, session: Session, nonce: bytes) -> None:
        """Within a transaction: take it; TooLate if it is not ours, over, or was taken before."""
        ends, chosen = self.require(nonce)
        now, name = self._clock(), chosen.hex()
        session.execute(delete(SpentNonceRow).where(SpentNonceRow.expires_at <= now))
        if session.get(SpentNonceRow, name) is not None:
            raise _unknown()
        session.add(SpentNonceRow(nonce=name, expires_at=ends))

    def require(self, nonce: bytes) -> tuple[float, bytes]:
        """Its end and its random part; TooLate if it is not ours, or over."""
        if len(nonce) != _FORM.size:
            raise _unknown()
        ends, chosen, mark = _FORM.unpack(nonce)
        if not hmac.compare_digest(mark, self._mark(ends, chosen)) or ends <= self._clock():
            raise _unknown()
        return ends, chosen

    def _mark(self, ends: float, chosen: bytes) -> bytes:
        return hmac.digest(self._key, struct.pack(">d", ends) + chosen, hashlib.sha256)


def _unknown() -> TooLate:
    return TooLate("the nonce is not one of this fleet, was used, or is over; begin again")
