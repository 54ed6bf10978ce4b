"""find leases of all runs."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """To this revision."""
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.create_index("tasks_by_lease", ["state", "lease_expires_at"], unique=False)
