"""Values kept in a database as the bytes of their messages.

The contract's rule, additive within v1, is also what keeps old records readable.
"""

from __future__ import annotations

from hfmds.v1 import admin_pb2, coordinator_pb2, synthesis_store_pb2
from hfmds.wire.assignments import (
    evaluation_report_from,
    evaluation_report_message,
    synthesis_report_from,
    synthesis_report_message,
    update_report_from,
    update_report_message,
)
from hfmds.wire.runs import round_from, round_message, spec_from, spec_message
from hfmds.wire.snapshots import pool_spec_from, pool_spec_message
from hfmds.wire.types import (
    EvaluationReport,
    PoolSpec,
    Round,
    RunSpec,
    SynthesisReport,
    UpdateReport,
)


def encode_run_spec(spec: RunSpec) -> bytes:
    """To the database."""
    return spec_message(spec).SerializeToString()


def decode_run_spec(record: bytes) -> RunSpec:
    """From the database."""
    return spec_from(admin_pb2.RunSpec.FromString(record))


def encode_round(completed: Round) -> bytes:
    """To the database."""
    return round_message(completed).SerializeToString()


def decode_round(record: bytes) -> Round:
    """From the database."""
    return round_from(admin_pb2.Round.FromString(record))


def encode_report(report: UpdateReport | SynthesisReport | EvaluationReport) -> bytes:
    """To the database; whose report it is stands in the row."""
    match report:
        case UpdateReport():
            return update_report_message("", "", report).SerializeToString()
        case SynthesisReport():
            return synthesis_report_message("", "", report).SerializeToString()
        case EvaluationReport():
            return evaluation_report_message("", "", report).SerializeToString()


def decode_update_report(record: bytes) -> UpdateReport:
    """From the database."""
    return update_report_from(coordinator_pb2.SubmitUpdateRequest.FromString(record))


def decode_synthesis_report(record: bytes) -> SynthesisReport:
    """From the database."""
    return synthesis_report_from(coordinator_pb2.SubmitSynthesisRequest.FromString(record))


def decode_evaluation_report(record: bytes) -> EvaluationReport:
    """From the database."""
    return evaluation_report_from(coordinator_pb2.SubmitEvaluationRequest.FromString(record))


def encode_pool_spec(spec: PoolSpec) -> bytes:
    """To the database."""
    return pool_spec_message(spec).SerializeToString()


def decode_pool_spec(record: bytes) -> PoolSpec:
    """From the database."""
    return pool_spec_from(synthesis_store_pb2.PoolSpec.FromString(record))
