"""Make the first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """To this revision."""
    op.create_table(
        "loose_blobs",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", "size_bytes"),
    )
    op.create_table(
        "pools",
        sa.Column("pool_id", sa.String(length=128), nullable=False),
        sa.Column("run_id", sa.String(length=128), nullable=False),
        sa.Column("spec", sa.LargeBinary(), nullable=False),
        sa.Column("opened_at", sa.DateTime(), nullable=False),
        sa.Column("sealed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("pool_id"),
    )
    with op.batch_alter_table("pools", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_pools_run_id"), ["run_id"], unique=False)

    op.create_table(
        "store",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("pseudonym_key", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "batches",
        sa.Column("pool_id", sa.String(length=128), nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("accepted_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["pool_id"],
            ["pools.pool_id"],
        ),
        sa.PrimaryKeyConstraint("pool_id", "device_id"),
    )
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_batches_sha256"), ["sha256"], unique=False)

    op.create_table(
        "named_batches",
        sa.Column("pool_id", sa.String(length=128), nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["pool_id"],
            ["pools.pool_id"],
        ),
        sa.PrimaryKeyConstraint("pool_id", "device_id", "sha256", "size_bytes"),
    )
    op.create_table(
        "snapshots",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("snapshot_id", sa.String(length=128), nullable=False),
        sa.Column("pool_id", sa.String(length=128), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("class_histogram", sa.JSON(), nullable=False),
        sa.Column("duplicates", sa.BigInteger(), nullable=False),
        sa.Column("paired_mean", sa.Double(), nullable=False),
        sa.Column("paired_p99", sa.Double(), nullable=False),
        sa.Column("paired_max", sa.Double(), nullable=False),
        sa.Column("nearest_mean", sa.Double(), nullable=False),
        sa.Column("nearest_p99", sa.Double(), nullable=False),
        sa.Column("nearest_max", sa.Double(), nullable=False),
        sa.Column("sealed_at", sa.DateTime(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["pool_id"],
            ["pools.pool_id"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("pool_id"),
        sa.UniqueConstraint("snapshot_id"),
    )
    op.create_table(
        "shards",
        sa.Column("snapshot_id", sa.String(length=128), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("contributor", sa.String(length=128), nullable=False),
        sa.ForeignKeyConstraint(
            ["snapshot_id"],
            ["snapshots.snapshot_id"],
        ),
        sa.PrimaryKeyConstraint("snapshot_id", "position"),
    )
    with op.batch_alter_table("shards", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_shards_sha256"), ["sha256"], unique=False)
