"""Encodes values for database columns, as the bytes of their messages.

The protos only grow within v1, so old records stay readable.
"""

from __future__ import annotations

from dataclasses import replace

from hfmds.domain.histograms import LeakageHistograms
from hfmds.domain.pools import PoolSpec, Shard, Snapshot
from hfmds.domain.runs import Round, RunSpec
from hfmds.domain.tasks import EvaluationReport, SynthesisReport, UpdateReport
from hfmds.v1 import admin_pb2, common_pb2, coordinator_pb2, synthesis_store_pb2
from hfmds.wire.conversions.admin_calls import round_from, round_message, spec_from, spec_message
from hfmds.wire.conversions.common import histograms_from, histograms_message
from hfmds.wire.conversions.device_calls import (
    evaluation_report_from,
    evaluation_report_message,
    synthesis_report_from,
    synthesis_report_message,
    update_report_from,
    update_report_message,
)
from hfmds.wire.conversions.store_calls import (
    pool_spec_from,
    pool_spec_message,
    shard_from,
    shard_message,
    snapshot_from,
    snapshot_message,
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
    """To the database; the row names the device and the task."""
    match report:
        case UpdateReport():
            return update_report_message(report).SerializeToString()
        case SynthesisReport():
            return synthesis_report_message("", "", report).SerializeToString()
        case EvaluationReport():
            return evaluation_report_message("", "", report).SerializeToString()


def decode_update_report(record: bytes) -> UpdateReport:
    """From the database."""
    return update_report_from(coordinator_pb2.UpdateReport.FromString(record))


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


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """To the database; its shards have rows of their own."""
    return snapshot_message(replace(snapshot, shards=())).SerializeToString()


def decode_snapshot(record: bytes) -> Snapshot:
    """From the database, without shards."""
    return snapshot_from(synthesis_store_pb2.Snapshot.FromString(record))


def encode_shard(shard: Shard) -> bytes:
    """To the database."""
    return shard_message(shard).SerializeToString()


def decode_shard(record: bytes) -> Shard:
    """From the database."""
    return shard_from(synthesis_store_pb2.Shard.FromString(record))


def encode_histograms(histograms: LeakageHistograms) -> bytes:
    """To the database."""
    return histograms_message(histograms).SerializeToString()


def decode_histograms(record: bytes) -> LeakageHistograms:
    """From the database."""
    return histograms_from(common_pb2.LeakageHistograms.FromString(record))
