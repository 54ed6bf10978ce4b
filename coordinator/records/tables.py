"""The coordinator's tables: everything that must survive a `kill -9`, except content (blobs).

Times are seconds since the epoch by the coordinator's clock. Specifications, reports and completed
rounds are the bytes of their protobuf messages (`hfmds.wire.conversions.records`).
"""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from hfmds.storage.event_log import EventColumns

_ID = String(128)
_SHA256 = String(64)


class Base(DeclarativeBase):
    """The base class of the tables."""


class RunRow(Base):
    """A run: its specification and its state."""

    __tablename__ = "runs"

    run_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    spec: Mapped[bytes] = mapped_column(LargeBinary)
    state: Mapped[str] = mapped_column(String(16), index=True)  # RunState by name
    state_reason: Mapped[str] = mapped_column(default="")
    created_at: Mapped[float]
    # Tells this run from other runs that had the same id.
    nonce: Mapped[str] = mapped_column(String(16))
    # A secret, so that only devices that learn the id of a pool know it.
    pool_key: Mapped[str] = mapped_column(String(32))
    # The model that it starts from, copied from another run; empty means fresh weights.
    start_sha256: Mapped[str] = mapped_column(_SHA256, default="")
    start_bytes: Mapped[int] = mapped_column(BigInteger, default=0)


class RoundRow(Base):
    """A round, in progress or completed; the newest completed one is the run's checkpoint."""

    __tablename__ = "rounds"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(String(16))  # RoundState by name
    began_at: Mapped[float]
    entered_at: Mapped[float]  # when it entered its state
    record: Mapped[bytes] = mapped_column(LargeBinary, default=b"")  # empty until it is completed
    # Copies from its record, to compare the rounds of a run.
    accuracy: Mapped[float | None]
    weights_sha256: Mapped[str] = mapped_column(_SHA256, default="")
    model_dropped: Mapped[bool] = mapped_column(default=False)  # its content is deleted, or will be


class PhaseRow(Base):
    """One thing a round asks of its devices: to synthesise, train or evaluate."""

    __tablename__ = "phases"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    weights_sha256: Mapped[str] = mapped_column(_SHA256)
    weights_bytes: Mapped[int] = mapped_column(BigInteger)
    reference: Mapped[str] = mapped_column(_ID)  # pool id, or snapshot id ("" without a pool)
    opened_at: Mapped[float]
    deadline_seconds: Mapped[float]
    deadline_at: Mapped[float]
    lease_seconds: Mapped[float]
    goal: Mapped[int]  # the results that close it; 0: it closes when no more can come
    asynchronous: Mapped[bool]  # its tasks outlive it, and count in the round that is open
    closed: Mapped[bool] = mapped_column(default=False)
    # When it opened: the devices that were present, and those among them that suited the run.
    devices_here: Mapped[int] = mapped_column(default=0)
    devices_eligible: Mapped[int] = mapped_column(default=0)


class TaskRow(Base):
    """One device's part of a phase, from assignment to its end."""

    __tablename__ = "tasks"

    task_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    round_number: Mapped[int]
    kind: Mapped[str] = mapped_column(String(16))
    device_id: Mapped[str] = mapped_column(_ID)
    state: Mapped[str] = mapped_column(String(16))  # TaskState by name
    assigned_at: Mapped[float]
    leased_at: Mapped[float] = mapped_column(default=0.0)  # the first time; 0: never
    lease_expires_at: Mapped[float] = mapped_column(default=0.0)
    accepted_at: Mapped[float] = mapped_column(default=0.0)
    # The round that counts its result; 0: not accepted, or not counted yet.
    counted_round: Mapped[int] = mapped_column(default=0)
    over_reason: Mapped[str] = mapped_column(String(16), default="")  # LateReason by name
    result_sha256: Mapped[str] = mapped_column(_SHA256, default="")
    report: Mapped[bytes] = mapped_column(LargeBinary, default=b"")
    failure: Mapped[str] = mapped_column(default="")
    failure_cause: Mapped[str] = mapped_column(String(16), default="")  # FailureCause by name
    failures: Mapped[int] = mapped_column(default=0)
    refusal: Mapped[str] = mapped_column(String(16), default="")  # why its first result was refused
    stage: Mapped[int] = mapped_column(default=0)  # the highest TaskStage of its device

    __table_args__ = (
        Index("tasks_by_phase", "run_id", "round_number", "kind"),
        Index("tasks_by_device", "device_id", "state"),
        Index("tasks_by_state", "run_id", "state"),
        Index("tasks_by_counted_round", "run_id", "counted_round"),
        Index("tasks_by_lease", "state", "lease_expires_at"),  # over all runs
    )


class DeviceRow(Base):
    """A device that has checked in, with its newest description of itself."""

    __tablename__ = "devices"

    device_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    samples: Mapped[int] = mapped_column(BigInteger)
    software_version: Mapped[str]
    engine: Mapped[str]
    labels: Mapped[str] = mapped_column(default="")  # name=value pairs, separated by commas
    free_memory_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    charging: Mapped[bool | None]
    unmetered: Mapped[bool | None]
    last_seen_at: Mapped[float]


class EventRow(EventColumns, Base):
    """An event of a log. Rows are only added, and the log outlives its run."""

    __tablename__ = "events"

    run_id: Mapped[str] = mapped_column(_ID)

    __table_args__ = (Index("events_by_run", "run_id", "sequence"),)


class DrainRow(Base):
    """Whether the coordinator is drained. There is one row, after the first drain."""

    __tablename__ = "drain"

    drain_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    on: Mapped[bool]
    changed_at: Mapped[float]
    changed_by: Mapped[str]


class SightingRow(Base):
    """The last sighting of a device, if several coordinators share the database."""

    __tablename__ = "sightings"

    device_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    replica: Mapped[str] = mapped_column(_ID)  # the coordinator that the device called
    run_id: Mapped[str] = mapped_column(_ID)  # the only run it works for; empty: any
    free_memory_bytes: Mapped[int] = mapped_column(BigInteger)
    last_seen_at: Mapped[float]
    here_until: Mapped[float]  # it counts as present until then
    # Grows with each write of a replica, so that the others read only new rows.
    batch: Mapped[int] = mapped_column(BigInteger, index=True)


class ContentMarkRow(Base):
    """A mark in the content, if several coordinators share the database. There is one row."""

    __tablename__ = "content_mark"

    mark_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    mark: Mapped[str] = mapped_column(String(32))


class PlanRow(Base):
    """A plan for devices without torch, by a key of its inputs (`hfmds.plans.plan_library`)."""

    __tablename__ = "plans"

    key: Mapped[str] = mapped_column(_SHA256, primary_key=True)
    sha256: Mapped[str] = mapped_column(_SHA256)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    used_at: Mapped[float]  # updated when the next plan is made


class LeadershipRow(Base):
    """The coordinator that drives the runs, if several share the database. There is one row."""

    __tablename__ = "leadership"

    name: Mapped[str] = mapped_column(String(16), primary_key=True)
    holder: Mapped[str] = mapped_column(_ID)  # a replica
    epoch: Mapped[int] = mapped_column(BigInteger)  # grows with each change of the leader
    expires_at: Mapped[float]  # by the database's clock


class FleetRow(Base):
    """The identity of the fleet. There is one row."""

    __tablename__ = "fleet"

    fleet_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    log_id: Mapped[str] = mapped_column(_ID)  # the id of its event log
    nonce_key: Mapped[bytes] = mapped_column(LargeBinary)  # a secret that signs nonces
    changes: Mapped[int] = mapped_column(BigInteger, default=0)  # grows with each revocation


class TokenRow(Base):
    """A token that admits devices or an operator. The table has only a hash of its secret."""

    __tablename__ = "tokens"

    token_id: Mapped[str] = mapped_column(String(12), primary_key=True)
    secret_sha256: Mapped[bytes] = mapped_column(LargeBinary)
    name: Mapped[str] = mapped_column(_ID)
    role: Mapped[str] = mapped_column(String(16), default="")  # of a person; empty: for devices
    uses: Mapped[int] = mapped_column(default=0)  # the number of devices that may use it
    used: Mapped[int] = mapped_column(default=0)  # the number of devices that have used it
    device_id: Mapped[str] = mapped_column(_ID, default="")  # the only device; empty: see `prefix`
    prefix: Mapped[str] = mapped_column(_ID, default="")  # of the device ids
    created_at: Mapped[float]
    created_by: Mapped[str]
    expires_at: Mapped[float]
    revoked: Mapped[bool] = mapped_column(default=False)


class SpentNonceRow(Base):
    """A nonce that was used, kept until it expires."""

    __tablename__ = "spent_nonces"

    nonce: Mapped[str] = mapped_column(String(32), primary_key=True)  # its random part, in hex
    expires_at: Mapped[float] = mapped_column(index=True)


class MemberRow(Base):
    """A device that has enrolled, was revoked, or is or was in quarantine."""

    __tablename__ = "members"

    device_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    token_id: Mapped[str] = mapped_column(String(12), default="")  # of its last enrolment
    enrolled_at: Mapped[float] = mapped_column(default=0.0)  # 0: never
    key_sha256: Mapped[str] = mapped_column(_SHA256, default="", index=True)  # empty: none yet
    serial: Mapped[str] = mapped_column(String(40), default="")  # of its newest certificate
    certified_at: Mapped[float] = mapped_column(default=0.0)
    certified_until: Mapped[float] = mapped_column(default=0.0)
    revoked: Mapped[bool] = mapped_column(default=False)  # and not enrolled since
    revoked_at: Mapped[float] = mapped_column(default=0.0)  # 0: never
    quarantined: Mapped[bool] = mapped_column(default=False)
    reason: Mapped[str] = mapped_column(default="")  # of the revocation or the quarantine


class DeadKeyRow(Base):
    """A key that was revoked or replaced, and gets no certificate again."""

    __tablename__ = "dead_keys"

    key_end: Mapped[str] = mapped_column(String(20), primary_key=True)  # of its name, in hex


class RevokedCertificateRow(Base):
    """A certificate of any party that is revoked."""

    __tablename__ = "revoked_certificates"

    serial: Mapped[str] = mapped_column(String(40), primary_key=True)  # hex digits
