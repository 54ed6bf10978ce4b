"""Make all tables of the store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "orphans",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("due_at", sa.DateTime(), nullable=False),
        sa.Column("deleted_at", sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint("sha256", "size_bytes"),
    )
    op.create_table(
        "run_references",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(length=128), nullable=False),
        sa.Column("released", sa.Boolean(), nullable=False),
        sa.Column("referenced", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    with op.batch_alter_table("run_references", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_run_references_run_id"), ["run_id"], unique=False)

    op.create_table(
        "store",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("pseudonym_key", sa.LargeBinary(), nullable=False),
        sa.Column("log_id", sa.String(length=128), nullable=False),
        sa.Column("owns_content", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "store_events",
        sa.Column("log_id", sa.String(length=128), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("at_microseconds", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("details", sa.String(), nullable=False),
        sa.Column("previous_hash", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("log_id", "sequence"),
    )
    op.create_table(
        "withdrawals",
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("run_id", sa.String(length=128), nullable=False),
        sa.Column("contributor", sa.String(length=128), nullable=False),
        sa.Column("withdrawn_at", sa.DateTime(), nullable=False),
        sa.Column("erased_at", sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint("device_id", "run_id"),
    )
    op.create_table(
        "pools",
        sa.Column("pool_id", sa.String(length=128), nullable=False),
        sa.Column("run_number", sa.Integer(), nullable=False),
        sa.Column("spec", sa.LargeBinary(), nullable=False),
        sa.Column("opened_at", sa.DateTime(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("state_reason", sa.String(), nullable=False),
        sa.Column("seal_quorum", sa.Integer(), nullable=False),
        sa.Column("seals_at", sa.DateTime(), nullable=True),
        sa.Column("devices", sa.Integer(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("leaking_samples", sa.BigInteger(), nullable=False),
        sa.Column("leaking_batches", sa.BigInteger(), nullable=False),
        sa.Column("leakage", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_number"],
            ["run_references.number"],
        ),
        sa.PrimaryKeyConstraint("pool_id"),
    )
    with op.batch_alter_table("pools", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_pools_run_number"), ["run_number"], unique=False)
        batch_op.create_index(batch_op.f("ix_pools_state"), ["state"], unique=False)

    op.create_table(
        "batches",
        sa.Column("pool_id", sa.String(length=128), nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("leaking_samples", sa.Integer(), nullable=False),
        sa.Column("leakage", sa.LargeBinary(), nullable=False),
        sa.Column("accepted_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["pool_id"],
            ["pools.pool_id"],
        ),
        sa.PrimaryKeyConstraint("pool_id", "device_id"),
    )
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_batches_device_id"), ["device_id"], unique=False)
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
        sa.Column("description", sa.LargeBinary(), nullable=False),
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
        sa.Column("contributor", sa.String(length=128), nullable=False),
        sa.Column("description", sa.LargeBinary(), nullable=False),
        sa.Column("hashes", sa.LargeBinary(), nullable=False),
        sa.Column("measurements", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["snapshot_id"],
            ["snapshots.snapshot_id"],
        ),
        sa.PrimaryKeyConstraint("snapshot_id", "position"),
    )
    with op.batch_alter_table("shards", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_shards_contributor"), ["contributor"], unique=False)
        batch_op.create_index(batch_op.f("ix_shards_sha256"), ["sha256"], unique=False)

    op.create_table(
        "exclusions",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
