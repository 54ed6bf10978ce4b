import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    # SQLite copies the table for this, although books refer to it.
    with op.batch_alter_table("shelves", recreate="auto") as shelves:
        shelves.add_column(sa.Column("label", sa.String(32), nullable=True))
    op.execute("UPDATE shelves SET label = 'shelf ' || id")
    with op.batch_alter_table("shelves") as shelves:
        shelves.alter_column("label", existing_type=sa.String(32), nullable=False)
