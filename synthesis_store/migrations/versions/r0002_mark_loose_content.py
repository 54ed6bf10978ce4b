"""mark loose content."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """To this revision."""
    with op.batch_alter_table("loose_blobs", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("mark", sa.String(length=32), server_default="", nullable=False)
        )
