"""mark pools with 128 bits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """To this revision."""
    # Runs of before may have a pool open, whose name must stay.
    digits: sa.Column[int] = sa.Column(
        "pool_mark_digits", sa.Integer(), nullable=False, server_default="8"
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.add_column(digits)
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.alter_column("pool_mark_digits", server_default=None)
