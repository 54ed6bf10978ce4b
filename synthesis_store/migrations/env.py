"""The script that Alembic runs to upgrade the schema or to draft a migration."""

from __future__ import annotations

from hfmds.storage.migrations import run_migrations
from synthesis_store.tables import StoreBase

run_migrations(StoreBase.metadata)
