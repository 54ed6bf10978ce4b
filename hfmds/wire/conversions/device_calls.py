"""Conversion pairs for coordinator.proto: assignments, profiles and reports of devices."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from hfmds.domain.devices import DeviceProfile, label_map, labels_from, require_id
from hfmds.domain.learning import Traffic
from hfmds.domain.tasks import (
    Assignment,
    DeviceReport,
    EvaluateWork,
    EvaluationReport,
    FailureCause,
    Finished,
    RetryLater,
    SynthesiseWork,
    SynthesisReport,
    TaskStage,
    TrainWork,
    UnreadableTask,
    UpdateReport,
)
from hfmds.errors import InvalidInput
from hfmds.v1 import coordinator_pb2 as pb
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

MAX_REASON_CHARACTERS = 1000
_MAX_NAME_CHARACTERS = 128
_MAX_TRAFFIC_BYTES = 2**50  # so that no sum over a fleet passes 2^63
_MAX_TRACEPARENT_CHARACTERS = 128
_UNKNOWN_OUTCOME_SECONDS = 60.0
_CACHED_RECIPES = 64  # as messages
_MAX_COSTS = {  # a hostile device must not spoil sums over the fleet
    "steps": 10**9,
    "cpu_seconds": 1e7,
    "peak_memory_bytes": 2**50,
    "withheld_samples": 10**9,
}


# The tasks of a cohort share a recipe, which is the largest part of an assignment.
_recipe_message = lru_cache(_CACHED_RECIPES)(recipe_message)


def stage_name(stage: TaskStage | None) -> str | None:
    """To the wire; None stays unset."""
    return f"TASK_STAGE_{stage.name}" if stage else None


def stage_from(number: int) -> TaskStage | None:
    """From the wire."""
    try:
        return TaskStage(number) or None
    except ValueError:
        raise InvalidInput(f"TaskStage {number} is not known to this version") from None


def failure_cause_from(number: int) -> FailureCause:
    """From the wire; a cause of a later version counts as unexpected."""
    name = pb.FailureCause.Name(number) if number in pb.FailureCause.values() else ""
    by_name = {f"FAILURE_CAUSE_{cause.name}": cause for cause in FailureCause}
    return by_name.get(name, FailureCause.UNEXPECTED)


def profile_message(profile: DeviceProfile) -> pb.DeviceProfile:
    """To the wire."""
    return pb.DeviceProfile(**profile_fields(profile))


def profile_fields(profile: DeviceProfile) -> dict[str, Any]:
    """Return a profile as keyword arguments of a message with its fields."""
    return {**flat_fields(profile), "labels": label_map(profile.labels)}


def profile_value(message: Any) -> DeviceProfile:
    """Make a profile of a message with its fields."""
    return DeviceProfile(
        samples=message.samples,
        software_version=message.software_version,
        engine=message.engine,
        labels=labels_from(message.labels, f"{message.DESCRIPTOR.name}.labels"),
        free_memory_bytes=message.free_memory_bytes,
        charging=message.charging if message.HasField("charging") else None,
        unmetered=message.unmetered if message.HasField("unmetered") else None,
    )


def profile_from(message: pb.DeviceProfile) -> DeviceProfile:
    """From the wire."""
    require_count(message, 1, "samples")
    require_count(message, 0, "free_memory_bytes")
    for name in ("software_version", "engine"):
        if len(getattr(message, name)) > _MAX_NAME_CHARACTERS:
            raise InvalidInput(
                f"DeviceProfile.{name} is longer than {_MAX_NAME_CHARACTERS} characters"
            )
    return profile_value(message)


def assignment_message(assignment: Assignment) -> pb.Assignment:
    """To the wire."""
    work = assignment.work
    return pb.Assignment(
        task_id=assignment.task_id,
        run_id=assignment.run_id,
        run_uid=assignment.run_uid,
        round=assignment.round_number,
        lease_seconds=assignment.lease_seconds,
        recipe=_recipe_message(assignment.recipe),
        seed=assignment.seed,
        weights=digest_message(assignment.weights),
        train=pb.TrainWork(snapshot_id=work.snapshot_id or "")
        if isinstance(work, TrainWork)
        else None,
        synthesise=pb.SynthesiseWork(pool_id=work.pool_id)
        if isinstance(work, SynthesiseWork)
        else None,
        evaluate=pb.EvaluateWork() if isinstance(work, EvaluateWork) else None,
        plan=digest_message(assignment.plan) if assignment.plan else None,
        traceparent=assignment.traceparent,
    )


def assignment_from(message: pb.Assignment) -> Assignment:
    """From the wire."""
    require_part(message, "recipe", "weights")
    require_finite(message, "lease_seconds")
    work: TrainWork | SynthesiseWork | EvaluateWork
    match message.WhichOneof("work"):
        case "train":
            snapshot_id = message.train.snapshot_id
            work = TrainWork(require_id(snapshot_id, "snapshot_id") if snapshot_id else None)
        case "synthesise":
            work = SynthesiseWork(require_id(message.synthesise.pool_id, "pool_id"))
        case "evaluate":
            work = EvaluateWork()
        case _:
            raise InvalidInput("Assignment.work is missing or of a kind this version does not know")
    return Assignment(
        task_id=require_id(message.task_id, "task_id"),
        run_id=require_id(message.run_id, "run_id"),
        run_uid=require_id(message.run_uid, "run_uid"),
        round_number=message.round,
        lease_seconds=message.lease_seconds,
        recipe=recipe_from(message.recipe),
        seed=message.seed,
        weights=digest_from(message.weights),
        work=work,
        plan=digest_from(message.plan) if message.HasField("plan") else None,
        traceparent=message.traceparent[:_MAX_TRACEPARENT_CHARACTERS],
    )


def outcome_message(outcome: Assignment | RetryLater | Finished) -> pb.CheckInResponse:
    """To the wire."""
    match outcome:
        case Assignment():
            return pb.CheckInResponse(assignment=assignment_message(outcome))
        case RetryLater():
            return pb.CheckInResponse(retry_later=pb.RetryLater(**flat_fields(outcome)))
        case Finished():
            return pb.CheckInResponse(finished=pb.Finished(**flat_fields(outcome)))


def outcome_from(
    message: pb.CheckInResponse,
) -> Assignment | UnreadableTask | RetryLater | Finished:
    """From the wire. An unreadable task keeps its id, because the device has to give it up."""
    match message.WhichOneof("outcome"):
        case "assignment":
            task = message.assignment
            try:
                return assignment_from(task)
            except InvalidInput as error:
                return UnreadableTask(
                    require_id(task.task_id, "task_id"), task.run_id[:128], str(error)
                )
        case "retry_later":
            return flat_value(RetryLater, message.retry_later)
        case "finished":
            return flat_value(Finished, message.finished)
        case _:  # of a later version; devices outlive coordinators and go on
            return RetryLater(
                _UNKNOWN_OUTCOME_SECONDS,
                "the coordinator's answer is of a kind this version does not know; upgrade the "
                "device",
            )


def update_report_message(report: UpdateReport) -> pb.UpdateReport:
    """To the wire."""
    return pb.UpdateReport(
        update=digest_message(report.update),
        samples=report.samples,
        loss=report.loss,
        traffic=traffic_message(report.traffic),
        training_seconds=report.training_seconds,
        device=_device_message(report.device),
    )


def update_report_from(message: pb.UpdateReport) -> UpdateReport:
    """From the wire."""
    require_part(message, "update")
    require_count(message, 1, "samples")
    require_finite(message, "loss", "training_seconds")
    return UpdateReport(
        update=digest_from(message.update),
        samples=message.samples,
        loss=message.loss,
        traffic=_one_devices_traffic(message),
        training_seconds=message.training_seconds,
        device=_device_from(message),
    )


def synthesis_report_message(
    device_id: str, task_id: str, report: SynthesisReport
) -> pb.SubmitSynthesisRequest:
    """To the wire."""
    return pb.SubmitSynthesisRequest(
        device_id=device_id,
        task_id=task_id,
        batch=digest_message(report.batch),
        samples=report.samples,
        leakage=leakage_message(report.leakage),
        synthetic_accuracy=report.synthetic_accuracy or 0.0,
        traffic=traffic_message(report.traffic),
        synthesis_seconds=report.synthesis_seconds,
        accuracy_not_measured=report.synthetic_accuracy is None,
        device=_device_message(report.device),
    )


def synthesis_report_from(message: pb.SubmitSynthesisRequest) -> SynthesisReport:
    """From the wire."""
    require_part(message, "batch", "leakage")
    require_count(message, 1, "samples")
    require_finite(message, "synthetic_accuracy", "synthesis_seconds")
    return SynthesisReport(
        batch=digest_from(message.batch),
        samples=message.samples,
        leakage=leakage_from(message.leakage),
        synthetic_accuracy=None if message.accuracy_not_measured else message.synthetic_accuracy,
        traffic=_one_devices_traffic(message),
        synthesis_seconds=message.synthesis_seconds,
        device=_device_from(message),
    )


def evaluation_report_message(
    device_id: str, task_id: str, report: EvaluationReport
) -> pb.SubmitEvaluationRequest:
    """To the wire."""
    return pb.SubmitEvaluationRequest(
        device_id=device_id,
        task_id=task_id,
        evaluation=evaluation_message(report.evaluation),
        traffic=traffic_message(report.traffic),
        evaluation_seconds=report.evaluation_seconds,
        device=_device_message(report.device),
    )


def evaluation_report_from(message: pb.SubmitEvaluationRequest) -> EvaluationReport:
    """From the wire; the loss of a model that diverged is NaN, and is not refused."""
    require_part(message, "evaluation")
    require_count(message.evaluation, 1, "samples")
    require_finite(message, "evaluation_seconds")
    if not 0 <= message.evaluation.accuracy <= 1:  # refuses NaN, too
        raise InvalidInput(
            f"Evaluation.accuracy is {message.evaluation.accuracy}; it must be in [0, 1]"
        )
    return EvaluationReport(
        evaluation=evaluation_from(message.evaluation),
        traffic=_one_devices_traffic(message),
        evaluation_seconds=message.evaluation_seconds,
        device=_device_from(message),
    )


def _device_message(report: DeviceReport | None) -> pb.DeviceReport | None:
    return pb.DeviceReport(**flat_fields(report)) if report else None


def _device_from(
    message: pb.UpdateReport | pb.SubmitSynthesisRequest | pb.SubmitEvaluationRequest,
) -> DeviceReport | None:
    """From the wire; a cost that cannot be true counts as not reported."""
    if not message.HasField("device"):
        return None
    report = message.device
    paired = report.ssim_paired_max if report.HasField("ssim_paired_max") else None
    nearest = report.ssim_nearest_max if report.HasField("ssim_nearest_max") else None
    # Both comparisons are false for NaN.
    possible = all(0 <= getattr(report, name) <= most for name, most in _MAX_COSTS.items())
    if not (possible and all(ssim is None or -1 <= ssim <= 1 for ssim in (paired, nearest))):
        return None
    return DeviceReport(
        steps=report.steps,
        cpu_seconds=report.cpu_seconds,
        peak_memory_bytes=report.peak_memory_bytes,
        withheld_samples=report.withheld_samples,
        ssim_paired_max=paired,
        ssim_nearest_max=nearest,
    )


def _one_devices_traffic(
    message: pb.UpdateReport | pb.SubmitSynthesisRequest | pb.SubmitEvaluationRequest,
) -> Traffic:
    traffic = traffic_from(message.traffic)
    if max(traffic.received_bytes, traffic.sent_bytes) > _MAX_TRAFFIC_BYTES:
        raise InvalidInput(f"Traffic is above {_MAX_TRAFFIC_BYTES} bytes; count again")
    return traffic
