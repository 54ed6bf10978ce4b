from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PixelType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PIXEL_TYPE_UNSPECIFIED: _ClassVar[PixelType]
    PIXEL_TYPE_UINT8: _ClassVar[PixelType]
    PIXEL_TYPE_FP16: _ClassVar[PixelType]

class LeakageAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEAKAGE_ACTION_UNSPECIFIED: _ClassVar[LeakageAction]
    LEAKAGE_ACTION_REPORT: _ClassVar[LeakageAction]
    LEAKAGE_ACTION_REFUSE: _ClassVar[LeakageAction]
    LEAKAGE_ACTION_DROP: _ClassVar[LeakageAction]

class NearAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEAR_ACTION_UNSPECIFIED: _ClassVar[NearAction]
    NEAR_ACTION_COUNT: _ClassVar[NearAction]
    NEAR_ACTION_DROP: _ClassVar[NearAction]
    NEAR_ACTION_KEEP_BETTER: _ClassVar[NearAction]

class Refresh(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFRESH_UNSPECIFIED: _ClassVar[Refresh]
    REFRESH_REPLACE: _ClassVar[Refresh]
    REFRESH_ACCUMULATE: _ClassVar[Refresh]
    REFRESH_DECAY: _ClassVar[Refresh]

class Weighting(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEIGHTING_UNSPECIFIED: _ClassVar[Weighting]
    WEIGHTING_UNIFORM: _ClassVar[Weighting]
    WEIGHTING_SAMPLES: _ClassVar[Weighting]

class Compression(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPRESSION_UNSPECIFIED: _ClassVar[Compression]
    COMPRESSION_NONE: _ClassVar[Compression]
    COMPRESSION_FP16: _ClassVar[Compression]
    COMPRESSION_INT8: _ClassVar[Compression]

class TaskStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STAGE_UNSPECIFIED: _ClassVar[TaskStage]
    TASK_STAGE_TAKEN: _ClassVar[TaskStage]
    TASK_STAGE_DOWNLOADED: _ClassVar[TaskStage]
    TASK_STAGE_COMPUTED: _ClassVar[TaskStage]
    TASK_STAGE_UPLOADED: _ClassVar[TaskStage]
PIXEL_TYPE_UNSPECIFIED: PixelType
PIXEL_TYPE_UINT8: PixelType
PIXEL_TYPE_FP16: PixelType
LEAKAGE_ACTION_UNSPECIFIED: LeakageAction
LEAKAGE_ACTION_REPORT: LeakageAction
LEAKAGE_ACTION_REFUSE: LeakageAction
LEAKAGE_ACTION_DROP: LeakageAction
NEAR_ACTION_UNSPECIFIED: NearAction
NEAR_ACTION_COUNT: NearAction
NEAR_ACTION_DROP: NearAction
NEAR_ACTION_KEEP_BETTER: NearAction
REFRESH_UNSPECIFIED: Refresh
REFRESH_REPLACE: Refresh
REFRESH_ACCUMULATE: Refresh
REFRESH_DECAY: Refresh
WEIGHTING_UNSPECIFIED: Weighting
WEIGHTING_UNIFORM: Weighting
WEIGHTING_SAMPLES: Weighting
COMPRESSION_UNSPECIFIED: Compression
COMPRESSION_NONE: Compression
COMPRESSION_FP16: Compression
COMPRESSION_INT8: Compression
TASK_STAGE_UNSPECIFIED: TaskStage
TASK_STAGE_TAKEN: TaskStage
TASK_STAGE_DOWNLOADED: TaskStage
TASK_STAGE_COMPUTED: TaskStage
TASK_STAGE_UPLOADED: TaskStage

class Digest(_message.Message):
    __slots__ = ("sha256", "size_bytes")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    size_bytes: int
    def __init__(self, sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ModelSpec(_message.Message):
    __slots__ = ("architecture", "channels", "height", "width", "classes")
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    architecture: str
    channels: int
    height: int
    width: int
    classes: int
    def __init__(self, architecture: _Optional[str] = ..., channels: _Optional[int] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., classes: _Optional[int] = ...) -> None: ...

class Normalisation(_message.Message):
    __slots__ = ("mean", "std")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    mean: _containers.RepeatedScalarFieldContainer[float]
    std: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, mean: _Optional[_Iterable[float]] = ..., std: _Optional[_Iterable[float]] = ...) -> None: ...

class TrainingRecipe(_message.Message):
    __slots__ = ("batch_size", "local_epochs", "learning_rate", "momentum", "weight_decay", "alpha", "later_from_round", "later_learning_rate")
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    LATER_FROM_ROUND_FIELD_NUMBER: _ClassVar[int]
    LATER_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    local_epochs: int
    learning_rate: float
    momentum: float
    weight_decay: float
    alpha: float
    later_from_round: int
    later_learning_rate: float
    def __init__(self, batch_size: _Optional[int] = ..., local_epochs: _Optional[int] = ..., learning_rate: _Optional[float] = ..., momentum: _Optional[float] = ..., weight_decay: _Optional[float] = ..., alpha: _Optional[float] = ..., later_from_round: _Optional[int] = ..., later_learning_rate: _Optional[float] = ...) -> None: ...

class SynthesisRecipe(_message.Message):
    __slots__ = ("every_rounds", "first_round", "samples_per_device", "steps", "learning_rate", "mu", "prototype_momentum", "matching_weight", "local_prototypes")
    EVERY_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_DEVICE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    MU_FIELD_NUMBER: _ClassVar[int]
    PROTOTYPE_MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    MATCHING_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    LOCAL_PROTOTYPES_FIELD_NUMBER: _ClassVar[int]
    every_rounds: int
    first_round: int
    samples_per_device: int
    steps: int
    learning_rate: float
    mu: float
    prototype_momentum: float
    matching_weight: float
    local_prototypes: bool
    def __init__(self, every_rounds: _Optional[int] = ..., first_round: _Optional[int] = ..., samples_per_device: _Optional[int] = ..., steps: _Optional[int] = ..., learning_rate: _Optional[float] = ..., mu: _Optional[float] = ..., prototype_momentum: _Optional[float] = ..., matching_weight: _Optional[float] = ..., local_prototypes: _Optional[bool] = ...) -> None: ...

class Recipe(_message.Message):
    __slots__ = ("model", "normalisation", "rounds", "seed", "training", "cohort_size", "class_names", "fedavg", "hfmds", "fedprox", "moon", "fedgen", "fedmix", "fedgan", "aggregation", "compression", "sampling", "pool")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NORMALISATION_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    COHORT_SIZE_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    FEDAVG_FIELD_NUMBER: _ClassVar[int]
    HFMDS_FIELD_NUMBER: _ClassVar[int]
    FEDPROX_FIELD_NUMBER: _ClassVar[int]
    MOON_FIELD_NUMBER: _ClassVar[int]
    FEDGEN_FIELD_NUMBER: _ClassVar[int]
    FEDMIX_FIELD_NUMBER: _ClassVar[int]
    FEDGAN_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    normalisation: Normalisation
    rounds: int
    seed: int
    training: TrainingRecipe
    cohort_size: int
    class_names: _containers.RepeatedScalarFieldContainer[str]
    fedavg: FedAvg
    hfmds: SynthesisRecipe
    fedprox: FedProx
    moon: Moon
    fedgen: FedGen
    fedmix: FedMix
    fedgan: FedGan
    aggregation: Aggregation
    compression: Compression
    sampling: Sampling
    pool: PoolPolicy
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., normalisation: _Optional[_Union[Normalisation, _Mapping]] = ..., rounds: _Optional[int] = ..., seed: _Optional[int] = ..., training: _Optional[_Union[TrainingRecipe, _Mapping]] = ..., cohort_size: _Optional[int] = ..., class_names: _Optional[_Iterable[str]] = ..., fedavg: _Optional[_Union[FedAvg, _Mapping]] = ..., hfmds: _Optional[_Union[SynthesisRecipe, _Mapping]] = ..., fedprox: _Optional[_Union[FedProx, _Mapping]] = ..., moon: _Optional[_Union[Moon, _Mapping]] = ..., fedgen: _Optional[_Union[FedGen, _Mapping]] = ..., fedmix: _Optional[_Union[FedMix, _Mapping]] = ..., fedgan: _Optional[_Union[FedGan, _Mapping]] = ..., aggregation: _Optional[_Union[Aggregation, _Mapping]] = ..., compression: _Optional[_Union[Compression, str]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., pool: _Optional[_Union[PoolPolicy, _Mapping]] = ...) -> None: ...

class PoolPolicy(_message.Message):
    __slots__ = ("pixel_type", "max_samples_per_class", "max_pool_samples", "psnr_paired_max_db", "psnr_nearest_max_db", "ssim_paired_max", "ssim_nearest_max", "leakage_action", "halt_psnr_paired_p99_db", "halt_psnr_nearest_p99_db", "halt_minimum_samples", "near_threshold", "near_action", "refresh", "refresh_max_samples", "refresh_keep_fraction", "near_max_samples", "halt_ssim_paired_p99", "halt_ssim_nearest_p99")
    PIXEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_SAMPLES_PER_CLASS_FIELD_NUMBER: _ClassVar[int]
    MAX_POOL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    PSNR_PAIRED_MAX_DB_FIELD_NUMBER: _ClassVar[int]
    PSNR_NEAREST_MAX_DB_FIELD_NUMBER: _ClassVar[int]
    SSIM_PAIRED_MAX_FIELD_NUMBER: _ClassVar[int]
    SSIM_NEAREST_MAX_FIELD_NUMBER: _ClassVar[int]
    LEAKAGE_ACTION_FIELD_NUMBER: _ClassVar[int]
    HALT_PSNR_PAIRED_P99_DB_FIELD_NUMBER: _ClassVar[int]
    HALT_PSNR_NEAREST_P99_DB_FIELD_NUMBER: _ClassVar[int]
    HALT_MINIMUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NEAR_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    NEAR_ACTION_FIELD_NUMBER: _ClassVar[int]
    REFRESH_FIELD_NUMBER: _ClassVar[int]
    REFRESH_MAX_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REFRESH_KEEP_FRACTION_FIELD_NUMBER: _ClassVar[int]
    NEAR_MAX_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    HALT_SSIM_PAIRED_P99_FIELD_NUMBER: _ClassVar[int]
    HALT_SSIM_NEAREST_P99_FIELD_NUMBER: _ClassVar[int]
    pixel_type: PixelType
    max_samples_per_class: int
    max_pool_samples: int
    psnr_paired_max_db: float
    psnr_nearest_max_db: float
    ssim_paired_max: float
    ssim_nearest_max: float
    leakage_action: LeakageAction
    halt_psnr_paired_p99_db: float
    halt_psnr_nearest_p99_db: float
    halt_minimum_samples: int
    near_threshold: float
    near_action: NearAction
    refresh: Refresh
    refresh_max_samples: int
    refresh_keep_fraction: float
    near_max_samples: int
    halt_ssim_paired_p99: float
    halt_ssim_nearest_p99: float
    def __init__(self, pixel_type: _Optional[_Union[PixelType, str]] = ..., max_samples_per_class: _Optional[int] = ..., max_pool_samples: _Optional[int] = ..., psnr_paired_max_db: _Optional[float] = ..., psnr_nearest_max_db: _Optional[float] = ..., ssim_paired_max: _Optional[float] = ..., ssim_nearest_max: _Optional[float] = ..., leakage_action: _Optional[_Union[LeakageAction, str]] = ..., halt_psnr_paired_p99_db: _Optional[float] = ..., halt_psnr_nearest_p99_db: _Optional[float] = ..., halt_minimum_samples: _Optional[int] = ..., near_threshold: _Optional[float] = ..., near_action: _Optional[_Union[NearAction, str]] = ..., refresh: _Optional[_Union[Refresh, str]] = ..., refresh_max_samples: _Optional[int] = ..., refresh_keep_fraction: _Optional[float] = ..., near_max_samples: _Optional[int] = ..., halt_ssim_paired_p99: _Optional[float] = ..., halt_ssim_nearest_p99: _Optional[float] = ...) -> None: ...

class Aggregation(_message.Message):
    __slots__ = ("mean", "median", "trimmed_mean", "multi_krum", "clip_norm", "fedavgm", "fedadam")
    class Mean(_message.Message):
        __slots__ = ("weighting",)
        WEIGHTING_FIELD_NUMBER: _ClassVar[int]
        weighting: Weighting
        def __init__(self, weighting: _Optional[_Union[Weighting, str]] = ...) -> None: ...
    class Median(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class TrimmedMean(_message.Message):
        __slots__ = ("trimmed_fraction",)
        TRIMMED_FRACTION_FIELD_NUMBER: _ClassVar[int]
        trimmed_fraction: float
        def __init__(self, trimmed_fraction: _Optional[float] = ...) -> None: ...
    class MultiKrum(_message.Message):
        __slots__ = ("hostile_devices", "kept_devices")
        HOSTILE_DEVICES_FIELD_NUMBER: _ClassVar[int]
        KEPT_DEVICES_FIELD_NUMBER: _ClassVar[int]
        hostile_devices: int
        kept_devices: int
        def __init__(self, hostile_devices: _Optional[int] = ..., kept_devices: _Optional[int] = ...) -> None: ...
    class FedAvgM(_message.Message):
        __slots__ = ("server_learning_rate", "momentum")
        SERVER_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
        MOMENTUM_FIELD_NUMBER: _ClassVar[int]
        server_learning_rate: float
        momentum: float
        def __init__(self, server_learning_rate: _Optional[float] = ..., momentum: _Optional[float] = ...) -> None: ...
    class FedAdam(_message.Message):
        __slots__ = ("server_learning_rate", "beta1", "beta2", "tau")
        SERVER_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
        BETA1_FIELD_NUMBER: _ClassVar[int]
        BETA2_FIELD_NUMBER: _ClassVar[int]
        TAU_FIELD_NUMBER: _ClassVar[int]
        server_learning_rate: float
        beta1: float
        beta2: float
        tau: float
        def __init__(self, server_learning_rate: _Optional[float] = ..., beta1: _Optional[float] = ..., beta2: _Optional[float] = ..., tau: _Optional[float] = ...) -> None: ...
    MEAN_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_MEAN_FIELD_NUMBER: _ClassVar[int]
    MULTI_KRUM_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    FEDAVGM_FIELD_NUMBER: _ClassVar[int]
    FEDADAM_FIELD_NUMBER: _ClassVar[int]
    mean: Aggregation.Mean
    median: Aggregation.Median
    trimmed_mean: Aggregation.TrimmedMean
    multi_krum: Aggregation.MultiKrum
    clip_norm: float
    fedavgm: Aggregation.FedAvgM
    fedadam: Aggregation.FedAdam
    def __init__(self, mean: _Optional[_Union[Aggregation.Mean, _Mapping]] = ..., median: _Optional[_Union[Aggregation.Median, _Mapping]] = ..., trimmed_mean: _Optional[_Union[Aggregation.TrimmedMean, _Mapping]] = ..., multi_krum: _Optional[_Union[Aggregation.MultiKrum, _Mapping]] = ..., clip_norm: _Optional[float] = ..., fedavgm: _Optional[_Union[Aggregation.FedAvgM, _Mapping]] = ..., fedadam: _Optional[_Union[Aggregation.FedAdam, _Mapping]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("by_samples", "power_of_choice")
    BY_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    POWER_OF_CHOICE_FIELD_NUMBER: _ClassVar[int]
    by_samples: SampleCountSampling
    power_of_choice: PowerOfChoice
    def __init__(self, by_samples: _Optional[_Union[SampleCountSampling, _Mapping]] = ..., power_of_choice: _Optional[_Union[PowerOfChoice, _Mapping]] = ...) -> None: ...

class SampleCountSampling(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PowerOfChoice(_message.Message):
    __slots__ = ("candidates",)
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    candidates: int
    def __init__(self, candidates: _Optional[int] = ...) -> None: ...

class FedAvg(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FedProx(_message.Message):
    __slots__ = ("mu",)
    MU_FIELD_NUMBER: _ClassVar[int]
    mu: float
    def __init__(self, mu: _Optional[float] = ...) -> None: ...

class Moon(_message.Message):
    __slots__ = ("mu", "temperature")
    MU_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    mu: float
    temperature: float
    def __init__(self, mu: _Optional[float] = ..., temperature: _Optional[float] = ...) -> None: ...

class FedGen(_message.Message):
    __slots__ = ("label_weight", "latent_weight", "decay", "noise_size", "hidden_size", "generator_steps", "generator_batch_size", "generator_learning_rate", "diversity_weight")
    LABEL_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    LATENT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    DECAY_FIELD_NUMBER: _ClassVar[int]
    NOISE_SIZE_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    GENERATOR_STEPS_FIELD_NUMBER: _ClassVar[int]
    GENERATOR_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    GENERATOR_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    DIVERSITY_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    label_weight: float
    latent_weight: float
    decay: float
    noise_size: int
    hidden_size: int
    generator_steps: int
    generator_batch_size: int
    generator_learning_rate: float
    diversity_weight: float
    def __init__(self, label_weight: _Optional[float] = ..., latent_weight: _Optional[float] = ..., decay: _Optional[float] = ..., noise_size: _Optional[int] = ..., hidden_size: _Optional[int] = ..., generator_steps: _Optional[int] = ..., generator_batch_size: _Optional[int] = ..., generator_learning_rate: _Optional[float] = ..., diversity_weight: _Optional[float] = ...) -> None: ...

class FedMix(_message.Message):
    __slots__ = ("mixing", "images_per_average", "samples_per_device")
    MIXING_FIELD_NUMBER: _ClassVar[int]
    IMAGES_PER_AVERAGE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_DEVICE_FIELD_NUMBER: _ClassVar[int]
    mixing: float
    images_per_average: int
    samples_per_device: int
    def __init__(self, mixing: _Optional[float] = ..., images_per_average: _Optional[int] = ..., samples_per_device: _Optional[int] = ...) -> None: ...

class FedGan(_message.Message):
    __slots__ = ("gan_rounds", "gan_epochs", "gan_batch_size", "gan_learning_rate", "noise_size", "width", "samples_per_device")
    GAN_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    GAN_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    GAN_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    GAN_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    NOISE_SIZE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_DEVICE_FIELD_NUMBER: _ClassVar[int]
    gan_rounds: int
    gan_epochs: int
    gan_batch_size: int
    gan_learning_rate: float
    noise_size: int
    width: int
    samples_per_device: int
    def __init__(self, gan_rounds: _Optional[int] = ..., gan_epochs: _Optional[int] = ..., gan_batch_size: _Optional[int] = ..., gan_learning_rate: _Optional[float] = ..., noise_size: _Optional[int] = ..., width: _Optional[int] = ..., samples_per_device: _Optional[int] = ...) -> None: ...

class LeakageSummary(_message.Message):
    __slots__ = ("paired_mean", "paired_p99", "paired_max", "nearest_mean", "nearest_p99", "nearest_max")
    PAIRED_MEAN_FIELD_NUMBER: _ClassVar[int]
    PAIRED_P99_FIELD_NUMBER: _ClassVar[int]
    PAIRED_MAX_FIELD_NUMBER: _ClassVar[int]
    NEAREST_MEAN_FIELD_NUMBER: _ClassVar[int]
    NEAREST_P99_FIELD_NUMBER: _ClassVar[int]
    NEAREST_MAX_FIELD_NUMBER: _ClassVar[int]
    paired_mean: float
    paired_p99: float
    paired_max: float
    nearest_mean: float
    nearest_p99: float
    nearest_max: float
    def __init__(self, paired_mean: _Optional[float] = ..., paired_p99: _Optional[float] = ..., paired_max: _Optional[float] = ..., nearest_mean: _Optional[float] = ..., nearest_p99: _Optional[float] = ..., nearest_max: _Optional[float] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("lowest", "width", "counts")
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    lowest: float
    width: float
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lowest: _Optional[float] = ..., width: _Optional[float] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class LeakageHistograms(_message.Message):
    __slots__ = ("psnr_paired", "psnr_nearest", "ssim_paired", "ssim_nearest")
    PSNR_PAIRED_FIELD_NUMBER: _ClassVar[int]
    PSNR_NEAREST_FIELD_NUMBER: _ClassVar[int]
    SSIM_PAIRED_FIELD_NUMBER: _ClassVar[int]
    SSIM_NEAREST_FIELD_NUMBER: _ClassVar[int]
    psnr_paired: Histogram
    psnr_nearest: Histogram
    ssim_paired: Histogram
    ssim_nearest: Histogram
    def __init__(self, psnr_paired: _Optional[_Union[Histogram, _Mapping]] = ..., psnr_nearest: _Optional[_Union[Histogram, _Mapping]] = ..., ssim_paired: _Optional[_Union[Histogram, _Mapping]] = ..., ssim_nearest: _Optional[_Union[Histogram, _Mapping]] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ("received_bytes", "sent_bytes")
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    received_bytes: int
    sent_bytes: int
    def __init__(self, received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("accuracy", "loss", "samples")
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    accuracy: float
    loss: float
    samples: int
    def __init__(self, accuracy: _Optional[float] = ..., loss: _Optional[float] = ..., samples: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "at_microseconds", "kind", "details", "previous_hash", "hash")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AT_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_HASH_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    at_microseconds: int
    kind: str
    details: str
    previous_hash: str
    hash: str
    def __init__(self, sequence: _Optional[int] = ..., at_microseconds: _Optional[int] = ..., kind: _Optional[str] = ..., details: _Optional[str] = ..., previous_hash: _Optional[str] = ..., hash: _Optional[str] = ...) -> None: ...
