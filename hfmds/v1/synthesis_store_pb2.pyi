import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from hfmds.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PoolState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOL_STATE_UNSPECIFIED: _ClassVar[PoolState]
    POOL_STATE_OPEN: _ClassVar[PoolState]
    POOL_STATE_SEALED: _ClassVar[PoolState]
    POOL_STATE_HALTED: _ClassVar[PoolState]
    POOL_STATE_ABANDONED: _ClassVar[PoolState]
POOL_STATE_UNSPECIFIED: PoolState
POOL_STATE_OPEN: PoolState
POOL_STATE_SEALED: PoolState
POOL_STATE_HALTED: PoolState
POOL_STATE_ABANDONED: PoolState

class PoolSpec(_message.Message):
    __slots__ = ("run_id", "round", "weights", "model", "max_samples_per_device", "method", "with_shares", "normalisation", "policy", "seal_quorum", "seal_deadline_seconds")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_SAMPLES_PER_DEVICE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    WITH_SHARES_FIELD_NUMBER: _ClassVar[int]
    NORMALISATION_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SEAL_QUORUM_FIELD_NUMBER: _ClassVar[int]
    SEAL_DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    round: int
    weights: _common_pb2.Digest
    model: _common_pb2.ModelSpec
    max_samples_per_device: int
    method: str
    with_shares: bool
    normalisation: _common_pb2.Normalisation
    policy: _common_pb2.PoolPolicy
    seal_quorum: int
    seal_deadline_seconds: float
    def __init__(self, run_id: _Optional[str] = ..., round: _Optional[int] = ..., weights: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., model: _Optional[_Union[_common_pb2.ModelSpec, _Mapping]] = ..., max_samples_per_device: _Optional[int] = ..., method: _Optional[str] = ..., with_shares: _Optional[bool] = ..., normalisation: _Optional[_Union[_common_pb2.Normalisation, _Mapping]] = ..., policy: _Optional[_Union[_common_pb2.PoolPolicy, _Mapping]] = ..., seal_quorum: _Optional[int] = ..., seal_deadline_seconds: _Optional[float] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("pool_id", "spec", "state", "state_reason", "devices", "samples", "leaking_samples", "leaking_batches", "leakage", "opened_at", "snapshot_id")
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LEAKING_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LEAKING_BATCHES_FIELD_NUMBER: _ClassVar[int]
    LEAKAGE_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    pool_id: str
    spec: PoolSpec
    state: PoolState
    state_reason: str
    devices: int
    samples: int
    leaking_samples: int
    leaking_batches: int
    leakage: _common_pb2.LeakageHistograms
    opened_at: _timestamp_pb2.Timestamp
    snapshot_id: str
    def __init__(self, pool_id: _Optional[str] = ..., spec: _Optional[_Union[PoolSpec, _Mapping]] = ..., state: _Optional[_Union[PoolState, str]] = ..., state_reason: _Optional[str] = ..., devices: _Optional[int] = ..., samples: _Optional[int] = ..., leaking_samples: _Optional[int] = ..., leaking_batches: _Optional[int] = ..., leakage: _Optional[_Union[_common_pb2.LeakageHistograms, _Mapping]] = ..., opened_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., snapshot_id: _Optional[str] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("digest", "samples", "contributor", "class_counts", "first_round")
    class ClassCountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTOR_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    digest: _common_pb2.Digest
    samples: int
    contributor: str
    class_counts: _containers.ScalarMap[int, int]
    first_round: int
    def __init__(self, digest: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., samples: _Optional[int] = ..., contributor: _Optional[str] = ..., class_counts: _Optional[_Mapping[int, int]] = ..., first_round: _Optional[int] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("snapshot_id", "pool_id", "spec", "samples", "class_histogram", "duplicates", "leakage", "sealed_at", "shards", "size_bytes", "parent_snapshot_id", "carried_samples", "repeated_samples", "near_duplicates", "near_duplicates_dropped", "leaking_samples", "leaking_samples_dropped", "leaking_batches", "histograms", "near_duplicates_unknown")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CLASS_HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    LEAKAGE_FIELD_NUMBER: _ClassVar[int]
    SEALED_AT_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARENT_SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    CARRIED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REPEATED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NEAR_DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    NEAR_DUPLICATES_DROPPED_FIELD_NUMBER: _ClassVar[int]
    LEAKING_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LEAKING_SAMPLES_DROPPED_FIELD_NUMBER: _ClassVar[int]
    LEAKING_BATCHES_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAMS_FIELD_NUMBER: _ClassVar[int]
    NEAR_DUPLICATES_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    pool_id: str
    spec: PoolSpec
    samples: int
    class_histogram: _containers.RepeatedScalarFieldContainer[int]
    duplicates: int
    leakage: _common_pb2.LeakageSummary
    sealed_at: _timestamp_pb2.Timestamp
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    size_bytes: int
    parent_snapshot_id: str
    carried_samples: int
    repeated_samples: int
    near_duplicates: int
    near_duplicates_dropped: int
    leaking_samples: int
    leaking_samples_dropped: int
    leaking_batches: int
    histograms: _common_pb2.LeakageHistograms
    near_duplicates_unknown: bool
    def __init__(self, snapshot_id: _Optional[str] = ..., pool_id: _Optional[str] = ..., spec: _Optional[_Union[PoolSpec, _Mapping]] = ..., samples: _Optional[int] = ..., class_histogram: _Optional[_Iterable[int]] = ..., duplicates: _Optional[int] = ..., leakage: _Optional[_Union[_common_pb2.LeakageSummary, _Mapping]] = ..., sealed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., size_bytes: _Optional[int] = ..., parent_snapshot_id: _Optional[str] = ..., carried_samples: _Optional[int] = ..., repeated_samples: _Optional[int] = ..., near_duplicates: _Optional[int] = ..., near_duplicates_dropped: _Optional[int] = ..., leaking_samples: _Optional[int] = ..., leaking_samples_dropped: _Optional[int] = ..., leaking_batches: _Optional[int] = ..., histograms: _Optional[_Union[_common_pb2.LeakageHistograms, _Mapping]] = ..., near_duplicates_unknown: _Optional[bool] = ...) -> None: ...

class OpenPoolRequest(_message.Message):
    __slots__ = ("pool_id", "spec", "referenced_snapshots")
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    pool_id: str
    spec: PoolSpec
    referenced_snapshots: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pool_id: _Optional[str] = ..., spec: _Optional[_Union[PoolSpec, _Mapping]] = ..., referenced_snapshots: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenPoolResponse(_message.Message):
    __slots__ = ("withdrawn_devices",)
    WITHDRAWN_DEVICES_FIELD_NUMBER: _ClassVar[int]
    withdrawn_devices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, withdrawn_devices: _Optional[_Iterable[str]] = ...) -> None: ...

class GetPoolRequest(_message.Message):
    __slots__ = ("pool_id",)
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    pool_id: str
    def __init__(self, pool_id: _Optional[str] = ...) -> None: ...

class GetPoolResponse(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: Pool
    def __init__(self, pool: _Optional[_Union[Pool, _Mapping]] = ...) -> None: ...

class QueryBatchRequest(_message.Message):
    __slots__ = ("pool_id", "device_id", "batch")
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    pool_id: str
    device_id: str
    batch: _common_pb2.Digest
    def __init__(self, pool_id: _Optional[str] = ..., device_id: _Optional[str] = ..., batch: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ...) -> None: ...

class QueryBatchResponse(_message.Message):
    __slots__ = ("offset", "complete")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    complete: bool
    def __init__(self, offset: _Optional[int] = ..., complete: _Optional[bool] = ...) -> None: ...

class PutBatchRequest(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: PutBatchHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[PutBatchHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutBatchHeader(_message.Message):
    __slots__ = ("pool_id", "device_id", "batch", "offset", "weights")
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    pool_id: str
    device_id: str
    batch: _common_pb2.Digest
    offset: int
    weights: _common_pb2.Digest
    def __init__(self, pool_id: _Optional[str] = ..., device_id: _Optional[str] = ..., batch: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., offset: _Optional[int] = ..., weights: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ...) -> None: ...

class PutBatchResponse(_message.Message):
    __slots__ = ("already_present",)
    ALREADY_PRESENT_FIELD_NUMBER: _ClassVar[int]
    already_present: bool
    def __init__(self, already_present: _Optional[bool] = ...) -> None: ...

class SealPoolRequest(_message.Message):
    __slots__ = ("pool_id", "contributions")
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    pool_id: str
    contributions: _containers.RepeatedCompositeFieldContainer[Contribution]
    def __init__(self, pool_id: _Optional[str] = ..., contributions: _Optional[_Iterable[_Union[Contribution, _Mapping]]] = ...) -> None: ...

class Contribution(_message.Message):
    __slots__ = ("device_id", "batch")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    batch: _common_pb2.Digest
    def __init__(self, device_id: _Optional[str] = ..., batch: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ...) -> None: ...

class SealPoolResponse(_message.Message):
    __slots__ = ("snapshot", "missing")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    missing: _containers.RepeatedCompositeFieldContainer[Contribution]
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., missing: _Optional[_Iterable[_Union[Contribution, _Mapping]]] = ...) -> None: ...

class GetSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id", "page_size", "page_token")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    page_size: int
    page_token: str
    def __init__(self, snapshot_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetSnapshotResponse(_message.Message):
    __slots__ = ("snapshot", "next_page_token")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    next_page_token: str
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ("run_id", "page_size", "page_token")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    page_size: int
    page_token: str
    def __init__(self, run_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ("snapshots", "next_page_token")
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[Snapshot]
    next_page_token: str
    def __init__(self, snapshots: _Optional[_Iterable[_Union[Snapshot, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetShareRequest(_message.Message):
    __slots__ = ("snapshot_id", "have", "max_bytes", "max_samples", "balanced", "seed", "page_size", "page_token")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    BALANCED_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    have: _containers.RepeatedCompositeFieldContainer[_common_pb2.Digest]
    max_bytes: int
    max_samples: int
    balanced: bool
    seed: int
    page_size: int
    page_token: str
    def __init__(self, snapshot_id: _Optional[str] = ..., have: _Optional[_Iterable[_Union[_common_pb2.Digest, _Mapping]]] = ..., max_bytes: _Optional[int] = ..., max_samples: _Optional[int] = ..., balanced: _Optional[bool] = ..., seed: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class SharedShard(_message.Message):
    __slots__ = ("shard", "missing")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    shard: Shard
    missing: bool
    def __init__(self, shard: _Optional[_Union[Shard, _Mapping]] = ..., missing: _Optional[bool] = ...) -> None: ...

class GetShareResponse(_message.Message):
    __slots__ = ("shards", "next_page_token")
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[SharedShard]
    next_page_token: str
    def __init__(self, shards: _Optional[_Iterable[_Union[SharedShard, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ReleaseRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ReleaseRunResponse(_message.Message):
    __slots__ = ("snapshots",)
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    snapshots: int
    def __init__(self, snapshots: _Optional[int] = ...) -> None: ...

class CollectSnapshotsRequest(_message.Message):
    __slots__ = ("dry_run",)
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    def __init__(self, dry_run: _Optional[bool] = ...) -> None: ...

class CollectSnapshotsResponse(_message.Message):
    __slots__ = ("snapshot_ids", "erased_blobs", "erased_bytes")
    SNAPSHOT_IDS_FIELD_NUMBER: _ClassVar[int]
    ERASED_BLOBS_FIELD_NUMBER: _ClassVar[int]
    ERASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    snapshot_ids: _containers.RepeatedScalarFieldContainer[str]
    erased_blobs: int
    erased_bytes: int
    def __init__(self, snapshot_ids: _Optional[_Iterable[str]] = ..., erased_blobs: _Optional[int] = ..., erased_bytes: _Optional[int] = ...) -> None: ...

class WithdrawDeviceRequest(_message.Message):
    __slots__ = ("device_id", "run_id")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    run_id: str
    def __init__(self, device_id: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class WithdrawDeviceResponse(_message.Message):
    __slots__ = ("removed_batches", "remaining_snapshots")
    REMOVED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    REMAINING_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    removed_batches: int
    remaining_snapshots: int
    def __init__(self, removed_batches: _Optional[int] = ..., remaining_snapshots: _Optional[int] = ...) -> None: ...

class ListStoreEventsRequest(_message.Message):
    __slots__ = ("after_sequence", "page_size")
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    after_sequence: int
    page_size: int
    def __init__(self, after_sequence: _Optional[int] = ..., page_size: _Optional[int] = ...) -> None: ...

class ListStoreEventsResponse(_message.Message):
    __slots__ = ("log_id", "events")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    log_id: str
    events: _containers.RepeatedCompositeFieldContainer[_common_pb2.Event]
    def __init__(self, log_id: _Optional[str] = ..., events: _Optional[_Iterable[_Union[_common_pb2.Event, _Mapping]]] = ...) -> None: ...

class Exclusions(_message.Message):
    __slots__ = ("dead_until", "serials", "quarantined")
    class DeadUntilEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class QuarantinedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DEAD_UNTIL_FIELD_NUMBER: _ClassVar[int]
    SERIALS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    dead_until: _containers.ScalarMap[str, int]
    serials: _containers.RepeatedScalarFieldContainer[str]
    quarantined: _containers.ScalarMap[str, str]
    def __init__(self, dead_until: _Optional[_Mapping[str, int]] = ..., serials: _Optional[_Iterable[str]] = ..., quarantined: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SetExclusionsRequest(_message.Message):
    __slots__ = ("version", "exclusions")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIONS_FIELD_NUMBER: _ClassVar[int]
    version: str
    exclusions: Exclusions
    def __init__(self, version: _Optional[str] = ..., exclusions: _Optional[_Union[Exclusions, _Mapping]] = ...) -> None: ...

class SetExclusionsResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    def __init__(self, version: _Optional[str] = ...) -> None: ...

class DownloadShardRequest(_message.Message):
    __slots__ = ("snapshot_id", "digest", "offset", "further")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    digest: _common_pb2.Digest
    offset: int
    further: _containers.RepeatedCompositeFieldContainer[_common_pb2.Digest]
    def __init__(self, snapshot_id: _Optional[str] = ..., digest: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., offset: _Optional[int] = ..., further: _Optional[_Iterable[_Union[_common_pb2.Digest, _Mapping]]] = ...) -> None: ...

class DownloadShardResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
