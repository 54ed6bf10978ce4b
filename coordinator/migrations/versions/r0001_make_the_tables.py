"""Make the tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Upgrade to this revision."""
    op.create_table(
        "content_mark",
        sa.Column("mark_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("mark", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("mark_id"),
    )
    op.create_table(
        "devices",
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("software_version", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("labels", sa.String(), nullable=False),
        sa.Column("free_memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("charging", sa.Boolean(), nullable=True),
        sa.Column("unmetered", sa.Boolean(), nullable=True),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("device_id"),
    )
    op.create_table(
        "drain",
        sa.Column("drain_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("on", sa.Boolean(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.Column("changed_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("drain_id"),
    )
    op.create_table(
        "events",
        sa.Column("log_id", sa.String(length=128), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(length=128), nullable=False),
        sa.Column("at_microseconds", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("details", sa.String(), nullable=False),
        sa.Column("previous_hash", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("log_id", "sequence"),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index("events_by_run", ["run_id", "sequence"], unique=False)

    op.create_table(
        "leadership",
        sa.Column("name", sa.String(length=16), nullable=False),
        sa.Column("holder", sa.String(length=128), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "plans",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String(length=128), nullable=False),
        sa.Column("spec", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("state_reason", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("nonce", sa.String(length=16), nullable=False),
        sa.Column("pool_key", sa.String(length=32), nullable=False),
        sa.Column("start_sha256", sa.String(length=64), nullable=False),
        sa.Column("start_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id"),
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_runs_state"), ["state"], unique=False)

    op.create_table(
        "phases",
        sa.Column("run_id", sa.String(length=128), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("weights_sha256", sa.String(length=64), nullable=False),
        sa.Column("weights_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reference", sa.String(length=128), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("deadline_seconds", sa.Double(), nullable=False),
        sa.Column("deadline_at", sa.Double(), nullable=False),
        sa.Column("lease_seconds", sa.Double(), nullable=False),
        sa.Column("goal", sa.Integer(), nullable=False),
        sa.Column("asynchronous", sa.Boolean(), nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("devices_here", sa.Integer(), nullable=False),
        sa.Column("devices_eligible", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["runs.run_id"],
        ),
        sa.PrimaryKeyConstraint("run_id", "round_number", "kind"),
    )
    op.create_table(
        "rounds",
        sa.Column("run_id", sa.String(length=128), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("began_at", sa.Double(), nullable=False),
        sa.Column("entered_at", sa.Double(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("accuracy", sa.Double(), nullable=True),
        sa.Column("weights_sha256", sa.String(length=64), nullable=False),
        sa.Column("model_dropped", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["runs.run_id"],
        ),
        sa.PrimaryKeyConstraint("run_id", "number"),
    )
    op.create_table(
        "tasks",
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("run_id", sa.String(length=128), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("assigned_at", sa.Double(), nullable=False),
        sa.Column("leased_at", sa.Double(), nullable=False),
        sa.Column("lease_expires_at", sa.Double(), nullable=False),
        sa.Column("accepted_at", sa.Double(), nullable=False),
        sa.Column("counted_round", sa.Integer(), nullable=False),
        sa.Column("over_reason", sa.String(length=16), nullable=False),
        sa.Column("result_sha256", sa.String(length=64), nullable=False),
        sa.Column("report", sa.LargeBinary(), nullable=False),
        sa.Column("failure", sa.String(), nullable=False),
        sa.Column("failure_cause", sa.String(length=16), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("refusal", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["runs.run_id"],
        ),
        sa.PrimaryKeyConstraint("task_id"),
    )
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.create_index("tasks_by_counted_round", ["run_id", "counted_round"], unique=False)
        batch_op.create_index("tasks_by_device", ["device_id", "state"], unique=False)
        batch_op.create_index("tasks_by_lease", ["state", "lease_expires_at"], unique=False)
        batch_op.create_index("tasks_by_phase", ["run_id", "round_number", "kind"], unique=False)
        batch_op.create_index("tasks_by_state", ["run_id", "state"], unique=False)

    op.create_table(
        "sightings",
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("replica", sa.String(length=128), nullable=False),
        sa.Column("run_id", sa.String(length=128), nullable=False),
        sa.Column("free_memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.Column("here_until", sa.Double(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("device_id"),
    )
    with op.batch_alter_table("sightings", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_sightings_batch"), ["batch"], unique=False)

    op.create_table(
        "fleet",
        sa.Column("fleet_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("log_id", sa.String(length=128), nullable=False),
        sa.Column("nonce_key", sa.LargeBinary(), nullable=False),
        sa.Column("changes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("fleet_id"),
    )
    op.create_table(
        "tokens",
        sa.Column("token_id", sa.String(length=12), nullable=False),
        sa.Column("secret_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("used", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("prefix", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("token_id"),
    )
    op.create_table(
        "spent_nonces",
        sa.Column("nonce", sa.String(length=32), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("nonce"),
    )
    with op.batch_alter_table("spent_nonces", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_spent_nonces_expires_at"), ["expires_at"], unique=False
        )

    op.create_table(
        "members",
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("token_id", sa.String(length=12), nullable=False),
        sa.Column("enrolled_at", sa.Double(), nullable=False),
        sa.Column("key_sha256", sa.String(length=64), nullable=False),
        sa.Column("serial", sa.String(length=40), nullable=False),
        sa.Column("certified_at", sa.Double(), nullable=False),
        sa.Column("certified_until", sa.Double(), nullable=False),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=False),
        sa.Column("quarantined", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("device_id"),
    )
    with op.batch_alter_table("members", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_members_key_sha256"), ["key_sha256"], unique=False)

    op.create_table(
        "dead_keys",
        sa.Column("key_end", sa.String(length=20), nullable=False),
        sa.PrimaryKeyConstraint("key_end"),
    )
    op.create_table(
        "revoked_certificates",
        sa.Column("serial", sa.String(length=40), nullable=False),
        sa.PrimaryKeyConstraint("serial"),
    )
