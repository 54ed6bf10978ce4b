"""What makes a store this store: the key of its pseudonyms and the id of its event log.

And what tells its replicas apart.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from sqlalchemy import Engine

from hfmds.storage.database import transaction
from hfmds.storage.files import write_whole
from synthesis_store.tables import StoreRow

_THE_STORE = 1  # id of the only row in its table


class Identity:
    """Made once in the store's life; all replicas have it in common."""

    def __init__(self, engine: Engine) -> None:
        with transaction(engine) as session:
            row = session.get(StoreRow, _THE_STORE)
            if row is None:
                row = StoreRow(
                    id=_THE_STORE,
                    pseudonym_key=secrets.token_bytes(32),
                    log_id=f"store.{secrets.token_hex(8)}",
                )
                session.add(row)
            self._pseudonym_key = row.pseudonym_key
            self.log_id = row.log_id

    def pseudonym(self, device_id: str) -> str:
        """A name for the device that only this store can trace back."""
        return hmac.new(self._pseudonym_key, device_id.encode(), hashlib.sha256).hexdigest()[:32]


def replica_name(folder: Path) -> str:
    """The name of the replica whose data folder this is; it stays as long as the folder."""
    path = folder / "replica"
    if not path.exists():
        write_whole(path, secrets.token_hex(8).encode())
    return path.read_text()
