"""One value of every kind that crosses the wire, with no field at its default."""

from dataclasses import replace
from datetime import UTC, datetime

from hfmds.domain.administration.fleet import AdminTerms, EnrolmentTerms, Member, Role, TokenRecord
from hfmds.domain.administration.operations import Drain, Funnel, Status
from hfmds.domain.devices import Device, DeviceProfile, DeviceState, Eligibility
from hfmds.domain.digest import digest_of
from hfmds.domain.histograms import Histogram, LeakageHistograms
from hfmds.domain.learning import DeviceEvaluation, Evaluation, LeakageSummary, Pool, Traffic
from hfmds.domain.methods import (
    FedAvg,
    FedGan,
    FedGen,
    FedMix,
    FedProx,
    Hfmds,
    Method,
    Moon,
)
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
from hfmds.domain.recipe import (
    AggregationRecipe,
    ModelSpec,
    Normalisation,
    Recipe,
    Sampling,
    TrainingRecipe,
)
from hfmds.domain.round_policy import (
    Asynchronous,
    EarlyStop,
    EvaluationByDevices,
    Retention,
    RoundPolicy,
)
from hfmds.domain.runs import (
    ModelVersion,
    Phase,
    Progress,
    Round,
    Run,
    RunSpec,
    RunState,
    Staleness,
)
from hfmds.domain.tasks import (
    Assignment,
    DeviceReport,
    EvaluateWork,
    EvaluationReport,
    Finished,
    RetryLater,
    SynthesiseWork,
    SynthesisReport,
    TaskStage,
    TrainWork,
    UpdateReport,
)
from hfmds.event_chain import make_event, origin
from hfmds.service.security.exclusions import Exclusions

MOMENT = datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)

WEIGHTS = digest_of(b"weights")
MODEL = ModelSpec(architecture="other-cnn", channels=2, height=5, width=7, classes=3)
METHODS: dict[str, Method] = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(mu=0.25),
    "moon": Moon(mu=3.5, temperature=0.75),
    "fedgen": FedGen(
        label_weight=1.5,
        latent_weight=2.5,
        decay=0.875,
        noise_size=3,
        hidden_size=4,
        generator_steps=5,
        generator_batch_size=6,
        generator_learning_rate=0.0625,
        diversity_weight=3.5,
    ),
    "fedmix": FedMix(mixing=0.375, images_per_average=3, samples_per_device=4),
    "fedgan": FedGan(
        gan_rounds=2,
        gan_epochs=3,
        gan_batch_size=4,
        gan_learning_rate=0.03125,
        noise_size=5,
        width=6,
        samples_per_device=7,
    ),
    "hfmds": Hfmds(
        every_rounds=2,
        first_round=4,
        samples_per_device=6,
        steps=8,
        learning_rate=0.07,
        mu=0.35,
        prototype_momentum=0.65,
        matching_weight=1.5,
        local_prototypes=True,
    ),
}
NORMALISATION = Normalisation(mean=(0.25, 0.5), std=(0.125, 0.375))
POOL_POLICY = PoolPolicy(
    pixel_type="fp16",
    max_samples_per_class=3,
    max_pool_samples=2**33,
    psnr_paired_max_db=20.5,
    psnr_nearest_max_db=21.5,
    ssim_paired_max=0.25,
    ssim_nearest_max=0.5,
    leakage_action="drop",
    halt_psnr_paired_p99_db=22.5,
    halt_psnr_nearest_p99_db=23.5,
    halt_ssim_paired_p99=0.375,
    halt_ssim_nearest_p99=0.625,
    halt_minimum_samples=7,
    near_threshold=0.125,
    near_max_samples=2**35,
    near_action="keep_better",
    refresh="decay",
    refresh_max_samples=2**34,
    refresh_keep_fraction=0.75,
)
RECIPE = Recipe(
    model=MODEL,
    normalisation=NORMALISATION,
    rounds=11,
    seed=2**62 + 1,
    training=TrainingRecipe(
        batch_size=3,
        local_epochs=5,
        learning_rate=0.03,
        momentum=0.7,
        weight_decay=1e-3,
        alpha=0.45,
        later_from_round=4,
        later_learning_rate=0.003,
    ),
    method=METHODS["hfmds"],
    cohort_size=9,
    class_names=("cat", "dog", "owl"),
    sampling=Sampling("power_of_choice", candidates=12),
    aggregation=AggregationRecipe(
        weighting="samples",
        clip_norm=1.5,
        optimiser="fedadam",
        server_learning_rate=0.125,
        beta1=0.75,
        beta2=0.875,
        tau=0.25,
    ),
    compression="int8",
    pool=POOL_POLICY,
)
RECIPES = {
    name: replace(
        RECIPE,
        method=method,
        pool=POOL_POLICY if method.samples_per_device else PoolPolicy(),
    )
    for name, method in METHODS.items()
}
LEAKAGE = LeakageSummary(9.5, 11.5, 12.5, 13.5, 14.5, 15.5)
TRAFFIC = Traffic(received_bytes=2**40, sent_bytes=7)
EVALUATION = Evaluation(accuracy=0.75, loss=0.625, samples=1000)

PROFILE = DeviceProfile(
    samples=60,
    software_version="0.1.0",
    engine="torch",
    labels=("model=b", "site=a"),
    free_memory_bytes=2**33,
    charging=True,
    unmetered=False,
)
TRAIN = Assignment(
    task_id="task-1",
    run_id="run-1",
    run_uid="uid-1",
    round_number=3,
    lease_seconds=42.5,
    recipe=RECIPE,
    seed=2**61 + 3,
    weights=WEIGHTS,
    work=TrainWork(snapshot_id="snapshot-1"),
    plan=digest_of(b"plan"),
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)
SYNTHESISE = Assignment(
    task_id="task-2",
    run_id="run-1",
    run_uid="uid-1",
    round_number=4,
    lease_seconds=43.5,
    recipe=RECIPE,
    seed=5,
    weights=WEIGHTS,
    work=SynthesiseWork(pool_id="pool-1"),
    plan=digest_of(b"plan"),
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)
EVALUATE = replace(SYNTHESISE, task_id="task-3", work=EvaluateWork())
RETRY_LATER = RetryLater(after_seconds=2.5, reason="no round is open")
FINISHED = Finished(reason="the run is complete")
DEVICE_REPORT = DeviceReport(
    steps=120,
    cpu_seconds=6.5,
    peak_memory_bytes=2**28,
    withheld_samples=3,
    ssim_paired_max=-0.25,
    ssim_nearest_max=0.5,
)
UPDATE_REPORT = UpdateReport(
    update=digest_of(b"update"),
    samples=60,
    loss=1.25,
    traffic=TRAFFIC,
    training_seconds=3.5,
    device=DEVICE_REPORT,
)
SYNTHESIS_REPORT = SynthesisReport(
    batch=digest_of(b"batch"),
    samples=20,
    leakage=LEAKAGE,
    synthetic_accuracy=0.95,
    traffic=TRAFFIC,
    synthesis_seconds=4.5,
    device=DEVICE_REPORT,
)

EVALUATION_REPORT = EvaluationReport(
    EVALUATION, traffic=TRAFFIC, evaluation_seconds=5.5, device=DEVICE_REPORT
)
UNMEASURED_REPORT = replace(SYNTHESIS_REPORT, synthetic_accuracy=None)

POLICY = RoundPolicy(
    minimum_devices=2,
    deadline_seconds=31,
    lease_seconds=32,
    over_selection=1.5,
    task_deadline_seconds=33,
    eligibility=Eligibility(
        labels=("model=b", "site=a"),
        minimum_free_memory_bytes=2**32,
        minimum_samples=7,
        require_charging=True,
        require_unmetered=True,
    ),
    asynchronous=Asynchronous(
        buffer_size=3, staleness_exponent=0.25, max_staleness=4, concurrency=6
    ),
    evaluation=EvaluationByDevices(devices=5, every_rounds=3),
    early_stop=EarlyStop(patience_rounds=8, min_improvement=0.125),
    retention=Retention(keep_last=9, keep_every=10),
)
RUN_SPEC = RunSpec(
    RECIPE,
    replace(POLICY, asynchronous=None),  # it has a cohort
    start_from=ModelVersion("run-0", 7),
)
ROUND = Round(
    number=4,
    device_ids=("device-1", "device-2"),
    weights=WEIGHTS,
    training_loss=0.875,
    evaluation=EVALUATION,
    refreshed=True,
    pool=Pool("snapshot-1", 40, LEAKAGE),
    traffic=TRAFFIC,
    duration_seconds=12.25,
    staleness=Staleness(mean=1.5, maximum=3),
    server_state=digest_of(b"server state"),
    device_evaluation=DeviceEvaluation(accuracy=0.5, loss=0.875, samples=77, devices=6),
    model_dropped=True,
)
RUN = Run(
    run_id="run-1",
    spec=RUN_SPEC,
    state=RunState.PAUSED,
    state_reason="paused by an operator",
    created_at=MOMENT,
    progress=Progress(round_number=5, phase=Phase.TRAINING, done=1, expected=2),
    completed_rounds=4,
    last_round=ROUND,
    best_round=3,
)
DEVICE = Device(
    device_id="device-1",
    state=DeviceState.WORKING,
    profile=PROFILE,
    last_seen_at=MOMENT,
    accepted_tasks=8,
    failed_tasks=1,
    task_id="task-1",
    last_failure="images are too small",
    stage=TaskStage.COMPUTED,
    has_twin=True,
)

DRAIN = Drain(on=True, since=MOMENT, by="127.0.0.1")
STATUS = Status(DRAIN, runs={"running": 1}, devices={"working": 2}, tasks={"taken": 3})
FUNNEL = Funnel(
    "train",
    here=12,
    eligible=11,
    assigned=10,
    taken=9,
    downloaded=8,
    computed=7,
    uploaded=6,
    accepted=5,
    pending=1,
    unneeded=2,
    late={"deadline": 1},
    failed={"no-memory": 2},
    refused={"not finite": 3},
)
EVENT = make_event("run-1.0a1b", 3, 1_770_000_000_000_001, "run-paused", "{}", origin("run-1.0a1b"))

POOL_SPEC = PoolSpec(
    run_id="run-1",
    round_number=4,
    weights=WEIGHTS,
    model=MODEL,
    max_samples_per_device=20,
    method="fedmix",
    with_shares=True,
    normalisation=NORMALISATION,
    policy=POOL_POLICY,
    seal_quorum=5,
    seal_deadline_seconds=61.5,
)
HISTOGRAMS = LeakageHistograms(
    Histogram(1.0, 2.0, (20, 19)),
    Histogram(2.0, 3.0, (30, 9)),
    Histogram(-1.0, 0.5, (1, 2, 36)),
    Histogram(-0.5, 0.25, (39,)),
)
POOL = PoolStatus(
    pool_id="pool-1",
    spec=POOL_SPEC,
    state=PoolState.HALTED,
    state_reason="its images give too much away",
    devices=2,
    samples=39,
    leaking_samples=3,
    leaking_batches=4,
    leakage=HISTOGRAMS,
    opened_at=MOMENT,
    snapshot_id="snapshot-1",
)
CONTRIBUTION = Contribution(device_id="device-1", batch=digest_of(b"batch"))
SNAPSHOT = Snapshot(
    snapshot_id="snapshot-1",
    pool_id="pool-1",
    spec=POOL_SPEC,
    samples=39,
    class_histogram=(20, 0, 19),
    duplicates=1,
    leakage=LEAKAGE,
    sealed_at=MOMENT,
    size_bytes=2**33,
    parent_snapshot_id="snapshot-0",
    carried_samples=20,
    repeated_samples=2,
    near_duplicates=4,
    near_duplicates_dropped=3,
    near_duplicates_unknown=True,
    leaking_samples=6,
    leaking_samples_dropped=5,
    leaking_batches=7,
    histograms=HISTOGRAMS,
    shards=(
        Shard(digest_of(b"shard 1"), 20, "pseudonym-1", {0: 20}, first_round=2),
        Shard(digest_of(b"shard 2"), 19, "pseudonym-2", {2: 19}, first_round=4),
    ),
)
SHARED_SHARD = SharedShard(SNAPSHOT.shards[0], missing=True)

ENROLMENT_TOKEN = TokenRecord(
    "4f1d0c77a9e2", "north", MOMENT, "admin/owner olga", MOMENT, EnrolmentTerms(5, "", "cam-", 2)
)
DEVICE_TOKEN = replace(ENROLMENT_TOKEN, terms=EnrolmentTerms(1, "camera", "", 1))
ADMIN_TOKEN = replace(ENROLMENT_TOKEN, terms=AdminTerms(Role.OPERATOR))
MEMBER = Member("camera", "4f1d0c77a9e2", MOMENT, "ab12", MOMENT, MOMENT, True, True, "noisy")
EXCLUSIONS = Exclusions({"camera": 7}, frozenset({"ab12"}), {"phone": "noisy"})
