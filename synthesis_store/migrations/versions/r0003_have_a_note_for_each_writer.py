"""have a note for each writer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """To this revision."""
    # Copied on either database: SQLite cannot change a table's key.
    op.create_table(
        "loose_blobs_anew",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("mark", sa.String(length=32), server_default="", nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("writer", sa.String(length=128), nullable=False),
        sa.Column("noted_at", sa.DateTime(), nullable=True),
        sa.Column("void", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", "size_bytes", "mark"),
    )
    op.execute(
        "INSERT INTO loose_blobs_anew (sha256, size_bytes, mark, reason, writer, noted_at) "
        "SELECT sha256, size_bytes, mark, reason, writer, noted_at FROM loose_blobs"
    )
    op.drop_table("loose_blobs")
    op.rename_table("loose_blobs_anew", "loose_blobs")
