"""Run by Alembic when the schema is upgraded or a migration is drafted."""

from __future__ import annotations

from coordinator.records.tables import Base
from hfmds.storage.migrations import run_migrations

run_migrations(Base.metadata)
