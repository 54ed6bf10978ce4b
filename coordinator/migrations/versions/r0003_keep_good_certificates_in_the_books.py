"""keep good certificates in the books."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """To this revision."""
    # What is in the books by now are those that devices are known by.
    known: sa.Column[bool] = sa.Column(
        "superseded", sa.Boolean(), nullable=False, server_default=sa.false()
    )
    with op.batch_alter_table("certificates", schema=None) as batch_op:
        batch_op.add_column(known)
    with op.batch_alter_table("certificates", schema=None) as batch_op:
        batch_op.alter_column("superseded", server_default=None)
