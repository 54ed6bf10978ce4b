import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from hfmds.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PoolSpec(_message.Message):
    __slots__ = ("run_id", "round", "weights", "model", "max_samples_per_device", "method", "with_shares")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_SAMPLES_PER_DEVICE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    WITH_SHARES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    round: int
    weights: _common_pb2.Digest
    model: _common_pb2.ModelSpec
    max_samples_per_device: int
    method: str
    with_shares: bool
    def __init__(self, run_id: _Optional[str] = ..., round: _Optional[int] = ..., weights: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., model: _Optional[_Union[_common_pb2.ModelSpec, _Mapping]] = ..., max_samples_per_device: _Optional[int] = ..., method: _Optional[str] = ..., with_shares: _Optional[bool] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("digest", "samples", "contributor")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTOR_FIELD_NUMBER: _ClassVar[int]
    digest: _common_pb2.Digest
    samples: int
    contributor: str
    def __init__(self, digest: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., samples: _Optional[int] = ..., contributor: _Optional[str] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("snapshot_id", "pool_id", "spec", "samples", "class_histogram", "duplicates", "leakage", "sealed_at", "shards", "size_bytes")
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
    def __init__(self, snapshot_id: _Optional[str] = ..., pool_id: _Optional[str] = ..., spec: _Optional[_Union[PoolSpec, _Mapping]] = ..., samples: _Optional[int] = ..., class_histogram: _Optional[_Iterable[int]] = ..., duplicates: _Optional[int] = ..., leakage: _Optional[_Union[_common_pb2.LeakageSummary, _Mapping]] = ..., sealed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class OpenPoolRequest(_message.Message):
    __slots__ = ("pool_id", "spec")
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    pool_id: str
    spec: PoolSpec
    def __init__(self, pool_id: _Optional[str] = ..., spec: _Optional[_Union[PoolSpec, _Mapping]] = ...) -> None: ...

class OpenPoolResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

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
    __slots__ = ("pool_id", "device_id", "batch", "offset")
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    pool_id: str
    device_id: str
    batch: _common_pb2.Digest
    offset: int
    def __init__(self, pool_id: _Optional[str] = ..., device_id: _Optional[str] = ..., batch: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("snapshot_id",)
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    def __init__(self, snapshot_id: _Optional[str] = ...) -> None: ...

class GetSnapshotResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ...) -> None: ...

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

class DownloadShardRequest(_message.Message):
    __slots__ = ("snapshot_id", "digest", "offset")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    digest: _common_pb2.Digest
    offset: int
    def __init__(self, snapshot_id: _Optional[str] = ..., digest: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class DownloadShardResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
