"""What devices did and do, over all their tasks: for draws, and for operators."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Engine, Select, case, func, select

from coordinator.records.states import TaskState
from coordinator.records.tables import TaskRow
from hfmds.domain.methods import TaskKind
from hfmds.domain.tasks import TaskStage
from hfmds.storage.database import read_connection, read_session
from hfmds.wire.conversions.records import decode_update_report


class DeviceWork:
    """Reads the tasks by device. Nothing here changes them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # --- in one run, for draws ------------------------------------------------------------------

    def unable(self, run_id: str, *kinds: TaskKind) -> set[str]:
        """Return the devices that gave such a task up since the run was created or resumed."""
        failed = select(TaskRow.device_id).where(
            TaskRow.run_id == run_id,
            TaskRow.state == TaskState.FAILED.name,
            TaskRow.kind.in_(kinds),
        )
        return self._names(failed)

    def at_work(self, run_id: str, now: float) -> set[str]:
        """Return the devices at work for this run."""
        return self._names(_working_devices(now).where(TaskRow.run_id == run_id))

    def at_work_elsewhere(self, run_id: str, now: float) -> set[str]:
        """Return the devices at work for another run."""
        return self._names(_working_devices(now).where(TaskRow.run_id != run_id))

    def last_losses(self, run_id: str) -> dict[str, float]:
        """Return the loss of each device's last accepted training in this run."""
        newest = (
            select(TaskRow.device_id, func.max(TaskRow.round_number).label("newest"))
            .where(
                TaskRow.run_id == run_id,
                TaskRow.kind == "train",
                TaskRow.state == TaskState.ACCEPTED.name,
            )
            .group_by(TaskRow.device_id)
            .subquery()
        )
        reports = (
            select(TaskRow.device_id, TaskRow.report)
            .join(
                newest,
                (TaskRow.device_id == newest.c.device_id)
                & (TaskRow.round_number == newest.c.newest),
            )
            .where(TaskRow.run_id == run_id, TaskRow.kind == "train")
        )
        with read_session(self._engine) as session:
            rows = session.execute(reports).all()
        return {device_id: decode_update_report(report).loss for device_id, report in rows}

    # --- in all runs, for operators -------------------------------------------------------------

    def last_failures(self, devices: Collection[str]) -> dict[str, str]:
        """Return why each of the devices last gave a task up."""
        failures = (
            select(TaskRow.device_id, TaskRow.failure)
            .where(TaskRow.device_id.in_(devices), TaskRow.failures > 0)
            .order_by(TaskRow.assigned_at)
        )
        with read_session(self._engine) as session:
            return {row[0]: row[1] for row in session.execute(failures)}  # the last one wins

    def tallies(self, devices: Collection[str]) -> dict[str, tuple[int, int]]:
        """Count each device's accepted tasks, and how often it gave one up, over all runs."""
        accepted = case((TaskRow.state == TaskState.ACCEPTED.name, 1), else_=0)
        by_device = (
            select(TaskRow.device_id, func.sum(accepted), func.sum(TaskRow.failures))
            .where(TaskRow.device_id.in_(devices))
            .group_by(TaskRow.device_id)
        )
        with read_session(self._engine) as session:
            return {row[0]: (row[1], row[2]) for row in session.execute(by_device)}

    def leases(self, now: float) -> dict[str, tuple[str, TaskStage]]:
        """Return the task of each working device, and the stage that it has reached."""
        live = select(TaskRow.device_id, TaskRow.task_id, TaskRow.stage).where(
            TaskRow.state == TaskState.LEASED.name, TaskRow.lease_expires_at > now
        )
        with read_session(self._engine) as session:
            return {row[0]: (row[1], TaskStage(row[2])) for row in session.execute(live)}

    def _names(self, names: Select[str]) -> set[str]:
        with read_connection(self._engine) as connection:
            return set(connection.scalars(names))


def _working_devices(now: float) -> Select[str]:
    return select(TaskRow.device_id).where(
        TaskRow.state == TaskState.LEASED.name, TaskRow.lease_expires_at > now
    )
