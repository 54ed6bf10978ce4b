"""Conversion pairs for admin.proto: runs, rounds and devices as operators see them."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TypeVar

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.timestamp_pb2 import Timestamp

from hfmds.domain.devices import (
    Device,
    DeviceState,
    Eligibility,
    label_map,
    labels_from,
    require_id,
)
from hfmds.domain.learning import DeviceEvaluation, Pool
from hfmds.domain.pools import PoolState
from hfmds.domain.round_policy import (
    OVER_SELECTION,
    Asynchronous,
    EarlyStop,
    EvaluationByDevices,
    Retention,
    RoundPolicy,
)
from hfmds.domain.runs import (
    ModelVersion,
    Phase,
    Progress,
    Round,
    Run,
    RunSpec,
    RunState,
    Staleness,
)
from hfmds.errors import InvalidInput
from hfmds.v1 import admin_pb2 as pb
from hfmds.wire.conversions.common import (
    digest_from,
    digest_message,
    evaluation_from,
    evaluation_message,
    flat_fields,
    flat_value,
    leakage_from,
    leakage_message,
    recipe_from,
    recipe_message,
    require_count,
    require_finite,
    require_part,
    traffic_from,
    traffic_message,
)
from hfmds.wire.conversions.device_calls import (
    profile_fields,
    profile_value,
    stage_from,
    stage_name,
)

Named = TypeVar("Named", RunState, Phase, DeviceState, PoolState)


def named(kind: type[Named], wire_kind: EnumTypeWrapper, number: int) -> Named:
    """Convert RUN_STATE_PAUSED to RunState.PAUSED; refuse numbers of a later version."""
    by_number = {value: name for name, value in wire_kind.items()}
    name = by_number.get(number, "")
    for member in kind:
        if name.endswith(f"_{member.name}"):
            return member
    raise InvalidInput(f"{kind.__name__} {number} is not known to this version")


def new_run_id(spec: RunSpec) -> str:
    """Return an id for a run without a name."""
    return f"{spec.recipe.method.name}-{secrets.token_hex(4)}"


def timestamp_message(moment: datetime) -> Timestamp:
    """To the wire."""
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def timestamp_from(message: Timestamp) -> datetime:
    """From the wire, in UTC."""
    try:
        return message.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"Timestamp of {message.seconds} s and {message.nanos} ns is no time of the years "
            "1 to 9999"
        ) from None


def policy_message(policy: RoundPolicy) -> pb.RoundPolicy:
    """To the wire."""
    eligibility, mode = policy.eligibility, policy.asynchronous
    return pb.RoundPolicy(
        minimum_devices=policy.minimum_devices,
        deadline_seconds=policy.deadline_seconds,
        lease_seconds=policy.lease_seconds,
        over_selection=policy.over_selection,
        task_deadline_seconds=policy.task_deadline_seconds,
        eligibility=pb.Eligibility(
            **{**flat_fields(eligibility), "labels": label_map(eligibility.labels)}
        ),
        asynchronous=pb.Asynchronous(**flat_fields(mode)) if mode else None,
        evaluation=pb.EvaluationByDevices(**flat_fields(policy.evaluation)),
        early_stop=pb.EarlyStop(**flat_fields(policy.early_stop)) if policy.early_stop else None,
        retention=pb.Retention(**flat_fields(policy.retention)),
    )


def policy_from(message: pb.RoundPolicy) -> RoundPolicy:
    """From the wire."""
    require_finite(message, *(field.name for field in message.DESCRIPTOR.fields))
    wanted = message.eligibility
    return RoundPolicy(
        minimum_devices=message.minimum_devices,
        deadline_seconds=message.deadline_seconds,
        lease_seconds=message.lease_seconds,
        over_selection=message.over_selection or OVER_SELECTION,
        task_deadline_seconds=message.task_deadline_seconds,
        eligibility=Eligibility(
            labels=labels_from(wanted.labels, "Eligibility.labels"),
            minimum_free_memory_bytes=wanted.minimum_free_memory_bytes,
            minimum_samples=wanted.minimum_samples,
            require_charging=wanted.require_charging,
            require_unmetered=wanted.require_unmetered,
        ),
        asynchronous=flat_value(Asynchronous, message.asynchronous)
        if message.HasField("asynchronous")
        else None,
        evaluation=EvaluationByDevices(
            message.evaluation.devices, message.evaluation.every_rounds or 1
        ),
        early_stop=flat_value(EarlyStop, message.early_stop)
        if message.HasField("early_stop")
        else None,
        retention=flat_value(Retention, message.retention),
    )


def spec_message(spec: RunSpec) -> pb.RunSpec:
    """To the wire."""
    start = spec.start_from
    return pb.RunSpec(
        recipe=recipe_message(spec.recipe),
        policy=policy_message(spec.policy),
        start_from=pb.ModelVersion(run_id=start.run_id, round=start.round_number)
        if start
        else None,
    )


def spec_from(message: pb.RunSpec) -> RunSpec:
    """From the wire."""
    require_part(message, "recipe", "policy")
    start_from = None
    if message.HasField("start_from"):
        start = message.start_from
        require_count(start, 1, "round")
        start_from = ModelVersion(require_id(start.run_id, "ModelVersion.run_id"), start.round)
    return RunSpec(recipe_from(message.recipe), policy_from(message.policy), start_from)


def round_message(completed: Round) -> pb.Round:
    """To the wire."""
    return pb.Round(
        round=completed.number,
        device_ids=completed.device_ids,
        weights=digest_message(completed.weights),
        training_loss=completed.training_loss,
        evaluation=evaluation_message(completed.evaluation) if completed.evaluation else None,
        refreshed=completed.refreshed,
        pool=pb.PoolSummary(
            snapshot_id=completed.pool.snapshot_id,
            samples=completed.pool.samples,
            leakage=leakage_message(completed.pool.leakage),
        )
        if completed.pool
        else None,
        traffic=traffic_message(completed.traffic),
        duration_seconds=completed.duration_seconds,
        staleness=pb.Staleness(**flat_fields(completed.staleness)) if completed.staleness else None,
        server_state=digest_message(completed.server_state) if completed.server_state else None,
        device_evaluation=_device_evaluation_message(completed.device_evaluation)
        if completed.device_evaluation
        else None,
        model_dropped=completed.model_dropped,
    )


def round_from(message: pb.Round) -> Round:
    """From the wire."""
    return Round(
        number=message.round,
        device_ids=tuple(message.device_ids),
        weights=digest_from(message.weights),
        training_loss=message.training_loss,
        evaluation=evaluation_from(message.evaluation) if message.HasField("evaluation") else None,
        refreshed=message.refreshed,
        pool=Pool(
            message.pool.snapshot_id, message.pool.samples, leakage_from(message.pool.leakage)
        )
        if message.HasField("pool")
        else None,
        traffic=traffic_from(message.traffic),
        duration_seconds=message.duration_seconds,
        staleness=flat_value(Staleness, message.staleness)
        if message.HasField("staleness")
        else None,
        server_state=digest_from(message.server_state)
        if message.HasField("server_state")
        else None,
        device_evaluation=_device_evaluation_from(message.device_evaluation)
        if message.HasField("device_evaluation")
        else None,
        model_dropped=message.model_dropped,
    )


def _device_evaluation_message(evaluation: DeviceEvaluation) -> pb.DeviceEvaluation:
    """To the wire; what it cost is in the round's traffic."""
    return pb.DeviceEvaluation(
        accuracy=evaluation.accuracy,
        loss=evaluation.loss,
        samples=evaluation.samples,
        devices=evaluation.devices,
    )


def _device_evaluation_from(message: pb.DeviceEvaluation) -> DeviceEvaluation:
    """From the wire; a loss that is NaN must not be refused, as in `evaluation_from`."""
    return DeviceEvaluation(message.accuracy, message.loss, message.samples, message.devices)


def run_message(run: Run) -> pb.Run:
    """To the wire."""
    progress = run.progress
    return pb.Run(
        run_id=run.run_id,
        spec=spec_message(run.spec),
        state=f"RUN_STATE_{run.state.name}",
        state_reason=run.state_reason,
        created_at=timestamp_message(run.created_at),
        progress=pb.Progress(
            round=progress.round_number,
            phase=f"PHASE_{progress.phase.name}",
            done=progress.done,
            expected=progress.expected,
        )
        if progress
        else None,
        completed_rounds=run.completed_rounds,
        last_round=round_message(run.last_round) if run.last_round else None,
        best_round=run.best_round,
    )


def run_from(message: pb.Run) -> Run:
    """From the wire."""
    progress = message.progress
    return Run(
        run_id=message.run_id,
        spec=spec_from(message.spec),
        state=named(RunState, pb.RunState, message.state),
        state_reason=message.state_reason,
        created_at=timestamp_from(message.created_at),
        progress=Progress(
            progress.round,
            named(Phase, pb.Phase, progress.phase),
            progress.done,
            progress.expected,
        )
        if message.HasField("progress")
        else None,
        completed_rounds=message.completed_rounds,
        last_round=round_from(message.last_round) if message.HasField("last_round") else None,
        best_round=message.best_round,
    )


def device_message(device: Device) -> pb.Device:
    """To the wire."""
    return pb.Device(
        device_id=device.device_id,
        state=f"DEVICE_STATE_{device.state.name}",
        **profile_fields(device.profile),
        last_seen_at=timestamp_message(device.last_seen_at),
        accepted_tasks=device.accepted_tasks,
        failed_tasks=device.failed_tasks,
        task_id=device.task_id or "",
        last_failure=device.last_failure,
        stage=stage_name(device.stage),
        has_twin=device.has_twin,
    )


def device_from(message: pb.Device) -> Device:
    """From the wire."""
    return Device(
        device_id=message.device_id,
        state=named(DeviceState, pb.DeviceState, message.state),
        profile=profile_value(message),
        last_seen_at=timestamp_from(message.last_seen_at),
        accepted_tasks=message.accepted_tasks,
        failed_tasks=message.failed_tasks,
        task_id=message.task_id or None,
        last_failure=message.last_failure,
        stage=stage_from(message.stage),
        has_twin=message.has_twin,
    )
