from hfmds.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FailureCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_CAUSE_UNSPECIFIED: _ClassVar[FailureCause]
    FAILURE_CAUSE_UNREADABLE: _ClassVar[FailureCause]
    FAILURE_CAUSE_UNSUITABLE: _ClassVar[FailureCause]
    FAILURE_CAUSE_DIVERGED: _ClassVar[FailureCause]
    FAILURE_CAUSE_TRANSFER: _ClassVar[FailureCause]
    FAILURE_CAUSE_REFUSED: _ClassVar[FailureCause]
    FAILURE_CAUSE_UNEXPECTED: _ClassVar[FailureCause]
FAILURE_CAUSE_UNSPECIFIED: FailureCause
FAILURE_CAUSE_UNREADABLE: FailureCause
FAILURE_CAUSE_UNSUITABLE: FailureCause
FAILURE_CAUSE_DIVERGED: FailureCause
FAILURE_CAUSE_TRANSFER: FailureCause
FAILURE_CAUSE_REFUSED: FailureCause
FAILURE_CAUSE_UNEXPECTED: FailureCause

class DeviceProfile(_message.Message):
    __slots__ = ("samples", "software_version", "engine", "labels", "free_memory_bytes", "charging", "unmetered")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    FREE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHARGING_FIELD_NUMBER: _ClassVar[int]
    UNMETERED_FIELD_NUMBER: _ClassVar[int]
    samples: int
    software_version: str
    engine: str
    labels: _containers.ScalarMap[str, str]
    free_memory_bytes: int
    charging: bool
    unmetered: bool
    def __init__(self, samples: _Optional[int] = ..., software_version: _Optional[str] = ..., engine: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., free_memory_bytes: _Optional[int] = ..., charging: _Optional[bool] = ..., unmetered: _Optional[bool] = ...) -> None: ...

class CheckInRequest(_message.Message):
    __slots__ = ("device_id", "profile", "wait_seconds", "run_id", "process")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    profile: DeviceProfile
    wait_seconds: float
    run_id: str
    process: str
    def __init__(self, device_id: _Optional[str] = ..., profile: _Optional[_Union[DeviceProfile, _Mapping]] = ..., wait_seconds: _Optional[float] = ..., run_id: _Optional[str] = ..., process: _Optional[str] = ...) -> None: ...

class CheckInResponse(_message.Message):
    __slots__ = ("assignment", "retry_later", "finished")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RETRY_LATER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    retry_later: RetryLater
    finished: Finished
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., retry_later: _Optional[_Union[RetryLater, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("task_id", "run_id", "round", "lease_seconds", "recipe", "seed", "weights", "train", "synthesise", "evaluate", "run_uid", "plan", "traceparent")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    SYNTHESISE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    RUN_UID_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    run_id: str
    round: int
    lease_seconds: float
    recipe: _common_pb2.Recipe
    seed: int
    weights: _common_pb2.Digest
    train: TrainWork
    synthesise: SynthesiseWork
    evaluate: EvaluateWork
    run_uid: str
    plan: _common_pb2.Digest
    traceparent: str
    def __init__(self, task_id: _Optional[str] = ..., run_id: _Optional[str] = ..., round: _Optional[int] = ..., lease_seconds: _Optional[float] = ..., recipe: _Optional[_Union[_common_pb2.Recipe, _Mapping]] = ..., seed: _Optional[int] = ..., weights: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., train: _Optional[_Union[TrainWork, _Mapping]] = ..., synthesise: _Optional[_Union[SynthesiseWork, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateWork, _Mapping]] = ..., run_uid: _Optional[str] = ..., plan: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class TrainWork(_message.Message):
    __slots__ = ("snapshot_id",)
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    def __init__(self, snapshot_id: _Optional[str] = ...) -> None: ...

class SynthesiseWork(_message.Message):
    __slots__ = ("pool_id",)
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    pool_id: str
    def __init__(self, pool_id: _Optional[str] = ...) -> None: ...

class EvaluateWork(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RetryLater(_message.Message):
    __slots__ = ("after_seconds", "reason")
    AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    after_seconds: float
    reason: str
    def __init__(self, after_seconds: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("device_id", "task_id", "stage")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    task_id: str
    stage: _common_pb2.TaskStage
    def __init__(self, device_id: _Optional[str] = ..., task_id: _Optional[str] = ..., stage: _Optional[_Union[_common_pb2.TaskStage, str]] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("lease_seconds",)
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    lease_seconds: float
    def __init__(self, lease_seconds: _Optional[float] = ...) -> None: ...

class DownloadBlobRequest(_message.Message):
    __slots__ = ("device_id", "task_id", "digest", "offset")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    task_id: str
    digest: _common_pb2.Digest
    offset: int
    def __init__(self, device_id: _Optional[str] = ..., task_id: _Optional[str] = ..., digest: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class DownloadBlobResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class QueryUploadRequest(_message.Message):
    __slots__ = ("device_id", "task_id", "update")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    task_id: str
    update: _common_pb2.Digest
    def __init__(self, device_id: _Optional[str] = ..., task_id: _Optional[str] = ..., update: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ...) -> None: ...

class QueryUploadResponse(_message.Message):
    __slots__ = ("offset", "complete")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    complete: bool
    def __init__(self, offset: _Optional[int] = ..., complete: _Optional[bool] = ...) -> None: ...

class SubmitUpdateRequest(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: SubmitUpdateHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[SubmitUpdateHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class SubmitUpdateHeader(_message.Message):
    __slots__ = ("device_id", "task_id", "offset", "report")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    task_id: str
    offset: int
    report: UpdateReport
    def __init__(self, device_id: _Optional[str] = ..., task_id: _Optional[str] = ..., offset: _Optional[int] = ..., report: _Optional[_Union[UpdateReport, _Mapping]] = ...) -> None: ...

class UpdateReport(_message.Message):
    __slots__ = ("update", "samples", "loss", "traffic", "training_seconds", "device")
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    TRAINING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    update: _common_pb2.Digest
    samples: int
    loss: float
    traffic: _common_pb2.Traffic
    training_seconds: float
    device: DeviceReport
    def __init__(self, update: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., samples: _Optional[int] = ..., loss: _Optional[float] = ..., traffic: _Optional[_Union[_common_pb2.Traffic, _Mapping]] = ..., training_seconds: _Optional[float] = ..., device: _Optional[_Union[DeviceReport, _Mapping]] = ...) -> None: ...

class SubmitUpdateResponse(_message.Message):
    __slots__ = ("already_accepted",)
    ALREADY_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    already_accepted: bool
    def __init__(self, already_accepted: _Optional[bool] = ...) -> None: ...

class DeviceReport(_message.Message):
    __slots__ = ("steps", "cpu_seconds", "peak_memory_bytes", "withheld_samples", "ssim_paired_max", "ssim_nearest_max")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SSIM_PAIRED_MAX_FIELD_NUMBER: _ClassVar[int]
    SSIM_NEAREST_MAX_FIELD_NUMBER: _ClassVar[int]
    steps: int
    cpu_seconds: float
    peak_memory_bytes: int
    withheld_samples: int
    ssim_paired_max: float
    ssim_nearest_max: float
    def __init__(self, steps: _Optional[int] = ..., cpu_seconds: _Optional[float] = ..., peak_memory_bytes: _Optional[int] = ..., withheld_samples: _Optional[int] = ..., ssim_paired_max: _Optional[float] = ..., ssim_nearest_max: _Optional[float] = ...) -> None: ...

class SubmitSynthesisRequest(_message.Message):
    __slots__ = ("device_id", "task_id", "batch", "samples", "leakage", "synthetic_accuracy", "traffic", "synthesis_seconds", "accuracy_not_measured", "device")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LEAKAGE_FIELD_NUMBER: _ClassVar[int]
    SYNTHETIC_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    SYNTHESIS_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_NOT_MEASURED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    task_id: str
    batch: _common_pb2.Digest
    samples: int
    leakage: _common_pb2.LeakageSummary
    synthetic_accuracy: float
    traffic: _common_pb2.Traffic
    synthesis_seconds: float
    accuracy_not_measured: bool
    device: DeviceReport
    def __init__(self, device_id: _Optional[str] = ..., task_id: _Optional[str] = ..., batch: _Optional[_Union[_common_pb2.Digest, _Mapping]] = ..., samples: _Optional[int] = ..., leakage: _Optional[_Union[_common_pb2.LeakageSummary, _Mapping]] = ..., synthetic_accuracy: _Optional[float] = ..., traffic: _Optional[_Union[_common_pb2.Traffic, _Mapping]] = ..., synthesis_seconds: _Optional[float] = ..., accuracy_not_measured: _Optional[bool] = ..., device: _Optional[_Union[DeviceReport, _Mapping]] = ...) -> None: ...

class SubmitSynthesisResponse(_message.Message):
    __slots__ = ("already_accepted",)
    ALREADY_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    already_accepted: bool
    def __init__(self, already_accepted: _Optional[bool] = ...) -> None: ...

class SubmitEvaluationRequest(_message.Message):
    __slots__ = ("device_id", "task_id", "evaluation", "traffic", "evaluation_seconds", "device")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    task_id: str
    evaluation: _common_pb2.Evaluation
    traffic: _common_pb2.Traffic
    evaluation_seconds: float
    device: DeviceReport
    def __init__(self, device_id: _Optional[str] = ..., task_id: _Optional[str] = ..., evaluation: _Optional[_Union[_common_pb2.Evaluation, _Mapping]] = ..., traffic: _Optional[_Union[_common_pb2.Traffic, _Mapping]] = ..., evaluation_seconds: _Optional[float] = ..., device: _Optional[_Union[DeviceReport, _Mapping]] = ...) -> None: ...

class SubmitEvaluationResponse(_message.Message):
    __slots__ = ("already_accepted",)
    ALREADY_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    already_accepted: bool
    def __init__(self, already_accepted: _Optional[bool] = ...) -> None: ...

class ReportFailureRequest(_message.Message):
    __slots__ = ("device_id", "task_id", "reason", "cause")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    task_id: str
    reason: str
    cause: FailureCause
    def __init__(self, device_id: _Optional[str] = ..., task_id: _Optional[str] = ..., reason: _Optional[str] = ..., cause: _Optional[_Union[FailureCause, str]] = ...) -> None: ...

class ReportFailureResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("device_id",)
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    def __init__(self, device_id: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
