"""The identity of a store: the key of its pseudonyms and the id of its event log."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from sqlalchemy import Engine

from hfmds.storage.blobs import Blobs
from hfmds.storage.database import write_session
from synthesis_store.tables import StoreRow

_THE_STORE = 1  # the id of the only row


class StoreIdentity:
    """The identity that the first replica makes and all replicas share."""

    def __init__(self, engine: Engine, blobs: Blobs) -> None:
        with write_session(engine) as session:
            row = session.get(StoreRow, _THE_STORE)
            if row is None:
                row = StoreRow(
                    id=_THE_STORE,
                    pseudonym_key=secrets.token_bytes(32),
                    log_id=f"store.{secrets.token_hex(8)}",
                    owns_content=next(iter(blobs.digests()), None) is None,
                )
                session.add(row)
            self._pseudonym_key = row.pseudonym_key
            self.log_id = row.log_id

    def pseudonym(self, device_id: str) -> str:
        """Return a name for the device that only this store can trace back to it."""
        return hmac.new(self._pseudonym_key, device_id.encode(), hashlib.sha256).hexdigest()[:32]
