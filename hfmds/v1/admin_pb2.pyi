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

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNSPECIFIED: _ClassVar[RunState]
    RUN_STATE_RUNNING: _ClassVar[RunState]
    RUN_STATE_PAUSED: _ClassVar[RunState]
    RUN_STATE_COMPLETED: _ClassVar[RunState]
    RUN_STATE_CANCELLED: _ClassVar[RunState]
    RUN_STATE_DELETING: _ClassVar[RunState]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_WAITING_FOR_DEVICES: _ClassVar[Phase]
    PHASE_SYNTHESISING: _ClassVar[Phase]
    PHASE_TRAINING: _ClassVar[Phase]
    PHASE_AGGREGATING: _ClassVar[Phase]
    PHASE_WAITING_FOR_STORE: _ClassVar[Phase]
    PHASE_SEALING: _ClassVar[Phase]
    PHASE_EVALUATING: _ClassVar[Phase]
    PHASE_DRAINED: _ClassVar[Phase]
    PHASE_MAKING_PLAN: _ClassVar[Phase]

class DeviceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_STATE_UNSPECIFIED: _ClassVar[DeviceState]
    DEVICE_STATE_AVAILABLE: _ClassVar[DeviceState]
    DEVICE_STATE_WORKING: _ClassVar[DeviceState]
    DEVICE_STATE_AWAY: _ClassVar[DeviceState]
RUN_STATE_UNSPECIFIED: RunState
RUN_STATE_RUNNING: RunState
RUN_STATE_PAUSED: RunState
RUN_STATE_COMPLETED: RunState
RUN_STATE_CANCELLED: RunState
RUN_STATE_DELETING: RunState
PHASE_UNSPECIFIED: Phase
PHASE_WAITING_FOR_DEVICES: Phase
PHASE_SYNTHESISING: Phase
PHASE_TRAINING: Phase
PHASE_AGGREGATING: Phase
PHASE_WAITING_FOR_STORE: Phase
PHASE_SEALING: Phase
PHASE_EVALUATING: Phase
PHASE_DRAINED: Phase
PHASE_MAKING_PLAN: Phase
DEVICE_STATE_UNSPECIFIED: DeviceState
DEVICE_STATE_AVAILABLE: DeviceState
DEVICE_STATE_WORKING: DeviceState
DEVICE_STATE_AWAY: DeviceState

class RunSpec(_message.Message):
    __slots__ = ("recipe", "policy", "start_from")
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    START_FROM_FIELD_NUMBER: _ClassVar[int]
    recipe: _common_pb2.Recipe
    policy: RoundPolicy
    start_from: ModelVersion
    def __init__(self, recipe: _Optional[_Union[_common_pb2.Recipe, _Mapping]] = ..., policy: _Optional[_Union[RoundPolicy, _Mapping]] = ..., start_from: _Optional[_Union[ModelVersion, _Mapping]] = ...) -> None: ...

class ModelVersion(_message.Message):
    __slots__ = ("run_id", "round")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    round: int
    def __init__(self, run_id: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class RoundPolicy(_message.Message):
    __slots__ = ("minimum_devices", "deadline_seconds", "lease_seconds", "over_selection", "task_deadline_seconds", "eligibility", "asynchronous", "evaluation", "early_stop", "retention")
    MINIMUM_DEVICES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OVER_SELECTION_FIELD_NUMBER: _ClassVar[int]
    TASK_DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ELIGIBILITY_FIELD_NUMBER: _ClassVar[int]
    ASYNCHRONOUS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOP_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    minimum_devices: int
    deadline_seconds: float
    lease_seconds: float
    over_selection: float
    task_deadline_seconds: float
    eligibility: Eligibility
    asynchronous: Asynchronous
    evaluation: EvaluationByDevices
    early_stop: EarlyStop
    retention: Retention
    def __init__(self, minimum_devices: _Optional[int] = ..., deadline_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., over_selection: _Optional[float] = ..., task_deadline_seconds: _Optional[float] = ..., eligibility: _Optional[_Union[Eligibility, _Mapping]] = ..., asynchronous: _Optional[_Union[Asynchronous, _Mapping]] = ..., evaluation: _Optional[_Union[EvaluationByDevices, _Mapping]] = ..., early_stop: _Optional[_Union[EarlyStop, _Mapping]] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ...) -> None: ...

class EvaluationByDevices(_message.Message):
    __slots__ = ("devices", "every_rounds")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    EVERY_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    devices: int
    every_rounds: int
    def __init__(self, devices: _Optional[int] = ..., every_rounds: _Optional[int] = ...) -> None: ...

class EarlyStop(_message.Message):
    __slots__ = ("patience_rounds", "min_improvement")
    PATIENCE_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    MIN_IMPROVEMENT_FIELD_NUMBER: _ClassVar[int]
    patience_rounds: int
    min_improvement: float
    def __init__(self, patience_rounds: _Optional[int] = ..., min_improvement: _Optional[float] = ...) -> None: ...

class Retention(_message.Message):
    __slots__ = ("keep_last", "keep_every")
    KEEP_LAST_FIELD_NUMBER: _ClassVar[int]
    KEEP_EVERY_FIELD_NUMBER: _ClassVar[int]
    keep_last: int
    keep_every: int
    def __init__(self, keep_last: _Optional[int] = ..., keep_every: _Optional[int] = ...) -> None: ...

class Eligibility(_message.Message):
    __slots__ = ("labels", "minimum_free_memory_bytes", "minimum_samples", "require_charging", "require_unmetered")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LABELS_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FREE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_CHARGING_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_UNMETERED_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.ScalarMap[str, str]
    minimum_free_memory_bytes: int
    minimum_samples: int
    require_charging: bool
    require_unmetered: bool
    def __init__(self, labels: _Optional[_Mapping[str, str]] = ..., minimum_free_memory_bytes: _Optional[int] = ..., minimum_samples: _Optional[int] = ..., require_charging: _Optional[bool] = ..., require_unmetered: _Optional[bool] = ...) -> None: ...

class Asynchronous(_message.Message):
    __slots__ = ("buffer_size", "staleness_exponent", "max_staleness", "concurrency")
    BUFFER_SIZE_FIELD_NUMBER: _ClassVar[int]
    STALENESS_EXPONENT_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    buffer_size: int
    staleness_exponent: float
    max_staleness: int
    concurrency: int
    def __init__(self, buffer_size: _Optional[int] = ..., staleness_exponent: _Optional[float] = ..., max_staleness: _Optional[int] = ..., concurrency: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("round", "phase", "done", "expected")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    round: int
    phase: Phase
    done: int
    expected: int
    def __init__(self, round: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., done: _Optional[int] = ..., expected: _Optional[int] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("run_id", "spec", "state", "state_reason", "created_at", "progress", "completed_rounds", "last_round", "best_round")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    LAST_ROUND_FIELD_NUMBER: _ClassVar[int]
    BEST_ROUND_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    spec: RunSpec
    state: RunState
    state_reason: str
    created_at: _timestamp_pb2.Timestamp
    progress: Progress
    completed_rounds: int
    last_round: Round
    best_round: int
    def __init__(self, run_id: _Optional[str] = ..., spec: _Optional[_Union[RunSpec, _Mapping]] = ..., state: _Optional[_Union[RunState, str]] = ..., state_reason: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., completed_rounds: _Optional[int] = ..., last_round: _Optional[_Union[Round, _Mapping]] = ..., best_round: _Optional[int] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("round", "device_ids", "weights", "training_loss", "evaluation", "refreshed", "pool", "traffic", "duration_seconds", "staleness", "server_state", "device_evaluation", "model_dropped")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_LOSS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    REFRESHED_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    SERVER_STATE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_DROPPED_FIELD_NUMBER: _ClassVar[int]
    round: int
    device_ids: _containers.RepeatedScalarFieldContainer[str]
    weights: _common_pb2.Digest
    training_loss: float
    evaluation: _common_pb2.Evaluation
    refreshed: bool
    pool: PoolSummary
    traffic: _common_pb2.Traffic
    duration_seconds: float
    staleness: Staleness
    server_state: _common_pb2.Digest
    device_evaluation: DeviceEvaluation
    model_dropped: bool
    def __init__(self, round: _Optional[int] = ..., device_ids: _Optional[_Iterable[str]] = ..., weights: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., training_loss: _Optional[float] = ..., evaluation: _Optional[_Union[_common_pb2.Evaluation, _Mapping]] = ..., refreshed: _Optional[bool] = ..., pool: _Optional[_Union[PoolSummary, _Mapping]] = ..., traffic: _Optional[_Union[_common_pb2.Traffic, _Mapping]] = ..., duration_seconds: _Optional[float] = ..., staleness: _Optional[_Union[Staleness, _Mapping]] = ..., server_state: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., device_evaluation: _Optional[_Union[DeviceEvaluation, _Mapping]] = ..., model_dropped: _Optional[bool] = ...) -> None: ...

class DeviceEvaluation(_message.Message):
    __slots__ = ("accuracy", "loss", "samples", "devices")
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    accuracy: float
    loss: float
    samples: int
    devices: int
    def __init__(self, accuracy: _Optional[float] = ..., loss: _Optional[float] = ..., samples: _Optional[int] = ..., devices: _Optional[int] = ...) -> None: ...

class Staleness(_message.Message):
    __slots__ = ("mean", "maximum")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    mean: float
    maximum: int
    def __init__(self, mean: _Optional[float] = ..., maximum: _Optional[int] = ...) -> None: ...

class PoolSummary(_message.Message):
    __slots__ = ("snapshot_id", "samples", "leakage")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LEAKAGE_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    samples: int
    leakage: _common_pb2.LeakageSummary
    def __init__(self, snapshot_id: _Optional[str] = ..., samples: _Optional[int] = ..., leakage: _Optional[_Union[_common_pb2.LeakageSummary, _Mapping]] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("device_id", "state", "samples", "engine", "software_version", "last_seen_at", "accepted_tasks", "failed_tasks", "task_id", "last_failure", "labels", "free_memory_bytes", "charging", "unmetered", "stage", "has_twin")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TASKS_FIELD_NUMBER: _ClassVar[int]
    FAILED_TASKS_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    FREE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHARGING_FIELD_NUMBER: _ClassVar[int]
    UNMETERED_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    HAS_TWIN_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    state: DeviceState
    samples: int
    engine: str
    software_version: str
    last_seen_at: _timestamp_pb2.Timestamp
    accepted_tasks: int
    failed_tasks: int
    task_id: str
    last_failure: str
    labels: _containers.ScalarMap[str, str]
    free_memory_bytes: int
    charging: bool
    unmetered: bool
    stage: _common_pb2.TaskStage
    has_twin: bool
    def __init__(self, device_id: _Optional[str] = ..., state: _Optional[_Union[DeviceState, str]] = ..., samples: _Optional[int] = ..., engine: _Optional[str] = ..., software_version: _Optional[str] = ..., last_seen_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., accepted_tasks: _Optional[int] = ..., failed_tasks: _Optional[int] = ..., task_id: _Optional[str] = ..., last_failure: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., free_memory_bytes: _Optional[int] = ..., charging: _Optional[bool] = ..., unmetered: _Optional[bool] = ..., stage: _Optional[_Union[_common_pb2.TaskStage, str]] = ..., has_twin: _Optional[bool] = ...) -> None: ...

class Funnel(_message.Message):
    __slots__ = ("kind", "here", "eligible", "assigned", "taken", "downloaded", "computed", "uploaded", "accepted", "pending", "unneeded", "late", "failed", "refused")
    class LateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FailedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    DOWNLOADED_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    UPLOADED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    UNNEEDED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    kind: str
    here: int
    eligible: int
    assigned: int
    taken: int
    downloaded: int
    computed: int
    uploaded: int
    accepted: int
    pending: int
    unneeded: int
    late: _containers.ScalarMap[str, int]
    failed: _containers.ScalarMap[str, int]
    refused: _containers.ScalarMap[str, int]
    def __init__(self, kind: _Optional[str] = ..., here: _Optional[int] = ..., eligible: _Optional[int] = ..., assigned: _Optional[int] = ..., taken: _Optional[int] = ..., downloaded: _Optional[int] = ..., computed: _Optional[int] = ..., uploaded: _Optional[int] = ..., accepted: _Optional[int] = ..., pending: _Optional[int] = ..., unneeded: _Optional[int] = ..., late: _Optional[_Mapping[str, int]] = ..., failed: _Optional[_Mapping[str, int]] = ..., refused: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("on", "since", "by")
    ON_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    on: bool
    since: _timestamp_pb2.Timestamp
    by: str
    def __init__(self, on: _Optional[bool] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., by: _Optional[str] = ...) -> None: ...

class CreateRunRequest(_message.Message):
    __slots__ = ("run_id", "spec")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    spec: RunSpec
    def __init__(self, run_id: _Optional[str] = ..., spec: _Optional[_Union[RunSpec, _Mapping]] = ...) -> None: ...

class CreateRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ListRoundsRequest(_message.Message):
    __slots__ = ("run_id", "after_round", "page_size")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_ROUND_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    after_round: int
    page_size: int
    def __init__(self, run_id: _Optional[str] = ..., after_round: _Optional[int] = ..., page_size: _Optional[int] = ...) -> None: ...

class ListRoundsResponse(_message.Message):
    __slots__ = ("rounds",)
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[Round]
    def __init__(self, rounds: _Optional[_Iterable[_Union[Round, _Mapping]]] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("run_id", "after_round")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_ROUND_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    after_round: int
    def __init__(self, run_id: _Optional[str] = ..., after_round: _Optional[int] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("run", "new_rounds")
    RUN_FIELD_NUMBER: _ClassVar[int]
    NEW_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    run: Run
    new_rounds: _containers.RepeatedCompositeFieldContainer[Round]
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., new_rounds: _Optional[_Iterable[_Union[Round, _Mapping]]] = ...) -> None: ...

class PauseRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class PauseRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ResumeRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ResumeRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class CancelRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class CancelRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class DeleteRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class DeleteRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ("run_id", "after_sequence", "page_size")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    after_sequence: int
    page_size: int
    def __init__(self, run_id: _Optional[str] = ..., after_sequence: _Optional[int] = ..., page_size: _Optional[int] = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("run_uid", "events")
    RUN_UID_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    run_uid: str
    events: _containers.RepeatedCompositeFieldContainer[_common_pb2.Event]
    def __init__(self, run_uid: _Optional[str] = ..., events: _Optional[_Iterable[_Union[_common_pb2.Event, _Mapping]]] = ...) -> None: ...

class GetFunnelRequest(_message.Message):
    __slots__ = ("run_id", "round")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    round: int
    def __init__(self, run_id: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class GetFunnelResponse(_message.Message):
    __slots__ = ("funnels",)
    FUNNELS_FIELD_NUMBER: _ClassVar[int]
    funnels: _containers.RepeatedCompositeFieldContainer[Funnel]
    def __init__(self, funnels: _Optional[_Iterable[_Union[Funnel, _Mapping]]] = ...) -> None: ...

class SetDrainRequest(_message.Message):
    __slots__ = ("on",)
    ON_FIELD_NUMBER: _ClassVar[int]
    on: bool
    def __init__(self, on: _Optional[bool] = ...) -> None: ...

class SetDrainResponse(_message.Message):
    __slots__ = ("drain",)
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    drain: Drain
    def __init__(self, drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("drain", "runs", "devices", "tasks")
    class RunsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DevicesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TasksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    drain: Drain
    runs: _containers.ScalarMap[str, int]
    devices: _containers.ScalarMap[str, int]
    tasks: _containers.ScalarMap[str, int]
    def __init__(self, drain: _Optional[_Union[Drain, _Mapping]] = ..., runs: _Optional[_Mapping[str, int]] = ..., devices: _Optional[_Mapping[str, int]] = ..., tasks: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ListDevicesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListDevicesResponse(_message.Message):
    __slots__ = ("devices", "next_page_token")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    next_page_token: str
    def __init__(self, devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DownloadModelRequest(_message.Message):
    __slots__ = ("run_id", "round", "offset")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    round: int
    offset: int
    def __init__(self, run_id: _Optional[str] = ..., round: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class DownloadModelResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
