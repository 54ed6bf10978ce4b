"""Conversion pairs for synthesis_store.proto: pools, shards and snapshots."""

from __future__ import annotations

from hfmds.v1 import synthesis_store_pb2 as pb
from hfmds.wire.messages import (
    digest_from,
    digest_message,
    leakage_from,
    leakage_message,
    model_from,
    model_message,
    require_count,
    require_part,
)
from hfmds.wire.runs import timestamp_from, timestamp_message
from hfmds.wire.types import Contribution, PoolSpec, Shard, Snapshot, require_id


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
    )


def pool_spec_from(message: pb.PoolSpec) -> PoolSpec:
    """From the wire."""
    require_part(message, "weights", "model")
    require_count(message, 1, "round", "max_samples_per_device")
    return PoolSpec(
        run_id=require_id(message.run_id, "run_id"),
        round_number=message.round,
        weights=digest_from(message.weights),
        model=model_from(message.model),
        max_samples_per_device=message.max_samples_per_device,
        method=message.method,
        with_shares=message.with_shares,
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


def snapshot_message(snapshot: Snapshot) -> pb.Snapshot:
    """To the wire."""
    return pb.Snapshot(
        snapshot_id=snapshot.snapshot_id,
        pool_id=snapshot.pool_id,
        spec=pool_spec_message(snapshot.spec),
        samples=snapshot.samples,
        class_histogram=snapshot.class_histogram,
        duplicates=snapshot.duplicates,
        leakage=leakage_message(snapshot.leakage),
        sealed_at=timestamp_message(snapshot.sealed_at),
        shards=[
            pb.Shard(
                digest=digest_message(shard.digest),
                samples=shard.samples,
                contributor=shard.contributor,
            )
            for shard in snapshot.shards
        ],
        size_bytes=snapshot.size_bytes,
    )


def snapshot_from(message: pb.Snapshot) -> Snapshot:
    """From the wire."""
    return Snapshot(
        snapshot_id=message.snapshot_id,
        pool_id=message.pool_id,
        spec=pool_spec_from(message.spec),
        samples=message.samples,
        class_histogram=tuple(message.class_histogram),
        duplicates=message.duplicates,
        leakage=leakage_from(message.leakage),
        sealed_at=timestamp_from(message.sealed_at),
        size_bytes=message.size_bytes,
        shards=tuple(
            Shard(digest_from(shard.digest), shard.samples, shard.contributor)
            for shard in message.shards
        ),
    )
