"""The end of a task in words: the log line about a result, and the cause of a failure."""

from __future__ import annotations

from edge_client.device.device_folder import Report
from hfmds.domain.tasks import Assignment, EvaluationReport, FailureCause, UpdateReport
from hfmds.errors import (
    ConfigurationError,
    CorruptData,
    Diverged,
    HfmdsError,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotFound,
)


def failure_cause(error: HfmdsError) -> FailureCause:
    """Return the kind of failure that an error is."""
    match error:
        case Diverged():
            return FailureCause.DIVERGED
        case CorruptData() | NotFound():
            return FailureCause.TRANSFER
        case InvalidInput() | ConfigurationError() | LimitExceeded():
            return FailureCause.UNSUITABLE
        case NotAllowed():
            return FailureCause.REFUSED
        case _:
            return FailureCause.UNEXPECTED


def result_summary(task: Assignment, report: Report) -> str:
    """Return the log line about a finished task."""
    moved = (
        f"received {report.traffic.received_bytes / 1e6:.1f} MB, "
        f"sent {report.traffic.sent_bytes / 1e6:.1f} MB"
    )
    if isinstance(report, UpdateReport):
        return (
            f"round {task.round_number}: update accepted; loss {report.loss:.3f}, "
            f"trained {report.training_seconds:.1f} s, {moved}"
        )
    if isinstance(report, EvaluationReport):
        evaluation = report.evaluation
        return (
            f"round {task.round_number}: evaluation accepted; {evaluation.accuracy:.1%} of "
            f"{evaluation.samples} own images, took {report.evaluation_seconds:.1f} s, {moved}"
        )
    accuracy = report.synthetic_accuracy
    recognised = "" if accuracy is None else f"recognised {accuracy:.0%}, "
    return (
        f"round {task.round_number}: {report.samples} synthetic images accepted; "
        f"{recognised}PSNR to the real ones "
        f"{report.leakage.paired_mean:.1f} dB (max {report.leakage.paired_max:.1f}), "
        f"synthesised {report.synthesis_seconds:.1f} s, {moved}"
    )
