import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table("shelves", sa.Column("id", sa.Integer(), primary_key=True))
    op.create_table(
        "books",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("shelf", sa.Integer(), sa.ForeignKey("shelves.id")),
    )
