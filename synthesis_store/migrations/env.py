"""Run by Alembic when the schema is upgraded or a migration is drafted."""

from __future__ import annotations

from hfmds.storage.migrations import run_migrations
from synthesis_store.tables import Base

run_migrations(Base.metadata)
