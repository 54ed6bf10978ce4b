"""Conversion pairs for synthesis_store.proto: pools, shards and snapshots."""

from __future__ import annotations

from hfmds.domain.devices import require_id
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import (
    Contribution,
    PoolSpec,
    PoolState,
    PoolStatus,
    Shard,
    SharedShard,
    Snapshot,
)
from hfmds.domain.recipe import Normalisation
from hfmds.v1 import common_pb2
from hfmds.v1 import synthesis_store_pb2 as pb
from hfmds.wire.conversions.admin_calls import named, timestamp_from, timestamp_message
from hfmds.wire.conversions.common import (
    digest_from,
    digest_message,
    flat_fields,
    histograms_from,
    histograms_message,
    leakage_from,
    leakage_message,
    model_from,
    model_message,
    pool_policy_from,
    pool_policy_message,
    require_count,
    require_finite,
    require_part,
)

# Fields of a snapshot that have the same names on the wire.
_COUNTS = (
    "samples",
    "duplicates",
    "size_bytes",
    "carried_samples",
    "repeated_samples",
    "near_duplicates",
    "near_duplicates_dropped",
    "leaking_samples",
    "leaking_samples_dropped",
    "leaking_batches",
    "near_duplicates_unknown",
)


def pool_spec_message(spec: PoolSpec) -> pb.PoolSpec:
    """To the wire."""
    return pb.PoolSpec(
        run_id=spec.run_id,
        round=spec.round_number,
        weights=digest_message(spec.weights),
        model=model_message(spec.model),
        max_samples_per_device=spec.max_samples_per_device,
        method=spec.method,
        with_shares=spec.with_shares,
        normalisation=common_pb2.Normalisation(**flat_fields(spec.normalisation))
        if spec.normalisation
        else None,
        policy=pool_policy_message(spec.policy),
        seal_quorum=spec.seal_quorum,
        seal_deadline_seconds=spec.seal_deadline_seconds,
    )


def pool_spec_from(message: pb.PoolSpec) -> PoolSpec:
    """From the wire."""
    require_part(message, "weights", "model")
    require_count(message, 1, "round", "max_samples_per_device")
    require_finite(message, "seal_deadline_seconds")
    return PoolSpec(
        run_id=require_id(message.run_id, "run_id"),
        round_number=message.round,
        weights=digest_from(message.weights),
        model=model_from(message.model),
        max_samples_per_device=message.max_samples_per_device,
        method=message.method,
        with_shares=message.with_shares,
        normalisation=Normalisation(
            tuple(message.normalisation.mean), tuple(message.normalisation.std)
        )
        if message.HasField("normalisation")
        else None,
        policy=pool_policy_from(message.policy) if message.HasField("policy") else PoolPolicy(),
        seal_quorum=message.seal_quorum,
        seal_deadline_seconds=message.seal_deadline_seconds,
    )


def pool_message(pool: PoolStatus) -> pb.Pool:
    """To the wire."""
    return pb.Pool(
        pool_id=pool.pool_id,
        spec=pool_spec_message(pool.spec),
        state=f"POOL_STATE_{pool.state.name}",
        state_reason=pool.state_reason,
        devices=pool.devices,
        samples=pool.samples,
        leaking_samples=pool.leaking_samples,
        leaking_batches=pool.leaking_batches,
        leakage=histograms_message(pool.leakage),
        opened_at=timestamp_message(pool.opened_at),
        snapshot_id=pool.snapshot_id,
    )


def pool_from(message: pb.Pool) -> PoolStatus:
    """From the wire."""
    return PoolStatus(
        pool_id=message.pool_id,
        spec=pool_spec_from(message.spec),
        state=named(PoolState, pb.PoolState, message.state),
        state_reason=message.state_reason,
        devices=message.devices,
        samples=message.samples,
        leaking_samples=message.leaking_samples,
        leaking_batches=message.leaking_batches,
        leakage=histograms_from(message.leakage),
        opened_at=timestamp_from(message.opened_at),
        snapshot_id=message.snapshot_id,
    )


def contribution_message(contribution: Contribution) -> pb.Contribution:
    """To the wire."""
    return pb.Contribution(
        device_id=contribution.device_id, batch=digest_message(contribution.batch)
    )


def contribution_from(message: pb.Contribution) -> Contribution:
    """From the wire."""
    require_part(message, "batch")
    return Contribution(require_id(message.device_id, "device_id"), digest_from(message.batch))


def shard_message(shard: Shard) -> pb.Shard:
    """To the wire."""
    return pb.Shard(
        digest=digest_message(shard.digest),
        samples=shard.samples,
        contributor=shard.contributor,
        class_counts=dict(shard.class_counts),
        first_round=shard.first_round,
    )


def shard_from(message: pb.Shard) -> Shard:
    """From the wire."""
    return Shard(
        digest_from(message.digest),
        message.samples,
        message.contributor,
        dict(message.class_counts),
        message.first_round,
    )


def shared_shard_message(shared: SharedShard) -> pb.SharedShard:
    """To the wire."""
    return pb.SharedShard(shard=shard_message(shared.shard), missing=shared.missing)


def shared_shard_from(message: pb.SharedShard) -> SharedShard:
    """From the wire."""
    require_part(message, "shard")
    return SharedShard(shard_from(message.shard), message.missing)


def snapshot_message(snapshot: Snapshot) -> pb.Snapshot:
    """To the wire."""
    return pb.Snapshot(
        snapshot_id=snapshot.snapshot_id,
        pool_id=snapshot.pool_id,
        spec=pool_spec_message(snapshot.spec),
        class_histogram=snapshot.class_histogram,
        leakage=leakage_message(snapshot.leakage),
        sealed_at=timestamp_message(snapshot.sealed_at),
        shards=map(shard_message, snapshot.shards),
        parent_snapshot_id=snapshot.parent_snapshot_id,
        histograms=histograms_message(snapshot.histograms),
        **{name: getattr(snapshot, name) for name in _COUNTS},
    )


def snapshot_from(message: pb.Snapshot) -> Snapshot:
    """From the wire."""
    return Snapshot(
        snapshot_id=message.snapshot_id,
        pool_id=message.pool_id,
        spec=pool_spec_from(message.spec),
        class_histogram=tuple(message.class_histogram),
        leakage=leakage_from(message.leakage),
        sealed_at=timestamp_from(message.sealed_at),
        shards=tuple(map(shard_from, message.shards)),
        parent_snapshot_id=message.parent_snapshot_id,
        histograms=histograms_from(message.histograms),
        **{name: getattr(message, name) for name in _COUNTS},
    )
