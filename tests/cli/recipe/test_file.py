from pathlib import Path

import pytest

from hfmds.cli.recipe.file import spec_from
from hfmds.cli.recipe.keys import KEYS, RECIPE_OPTIONS
from hfmds.domain.devices import Eligibility
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
from hfmds.domain.recipe import (
    AggregationRecipe,
    ModelSpec,
    Normalisation,
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
from hfmds.errors import ConfigurationError

WHOLE = """
method = "hfmds"
rounds = 7
seed = 3
cohort_size = 6
class_names = ["cat", "dog"]
compression = "fp16"

[model]
architecture = "paper-cnn"
channels = 1
height = 20
width = 24
classes = 2

[normalisation]
mean = [0.1]
std = [1]

[training]
batch_size = 5
local_epochs = 2
learning_rate = 1
momentum = 0.5
weight_decay = 0.0
alpha = 0.3
later_from_round = 4
later_learning_rate = 0.1

[aggregation]
rule = "multi_krum"
hostile_devices = 1
kept_devices = 2
clip_norm = 1
optimiser = "fedavgm"
server_learning_rate = 0.5
momentum = 0.25

[hfmds]
every_rounds = 3
first_round = 2
samples_per_device = 11
steps = 12
learning_rate = 0.1
mu = 0.25
prototype_momentum = 0.75
matching_weight = 2.0
local_prototypes = true

[sampling]
strategy = "power_of_choice"
candidates = 9

[policy]
minimum_devices = 5
deadline_seconds = 30
lease_seconds = 10.5
over_selection = 2
task_deadline_seconds = 20

[eligibility]
labels = ["site=north", "model=b"]
minimum_free_memory_bytes = 1000000
minimum_samples = 3
require_charging = true
require_unmetered = false
"""


def recipe_file(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_an_empty_recipe_is_the_papers_hfmds() -> None:
    spec = spec_from(None, {})
    assert spec.recipe.training == TrainingRecipe()
    assert spec.recipe.method == Hfmds()
    assert spec.recipe.model == ModelSpec()
    assert spec.recipe.normalisation == Normalisation((0.5,) * 3, (0.5,) * 3)
    assert spec.policy == RoundPolicy()


def test_every_field_can_be_set_in_a_file(tmp_path: Path) -> None:
    spec = spec_from(recipe_file(tmp_path, WHOLE), {})
    recipe = spec.recipe
    assert (recipe.rounds, recipe.seed, recipe.cohort_size) == (7, 3, 6)
    assert recipe.class_names == ("cat", "dog")
    assert recipe.model == ModelSpec("paper-cnn", 1, 20, 24, 2)
    assert recipe.normalisation == Normalisation((0.1,), (1.0,))
    assert recipe.training == TrainingRecipe(5, 2, 1.0, 0.5, 0.0, 0.3, 4, 0.1)
    assert recipe.method == Hfmds(3, 2, 11, 12, 0.1, 0.25, 0.75, 2.0, True)
    assert recipe.compression == "fp16"
    assert recipe.aggregation == AggregationRecipe(
        rule="multi_krum",
        hostile_devices=1,
        kept_devices=2,
        clip_norm=1.0,
        optimiser="fedavgm",
        server_learning_rate=0.5,
        momentum=0.25,
    )
    assert recipe.sampling == Sampling("power_of_choice", 9)
    labels = ("model=b", "site=north")
    eligibility = Eligibility(labels, 1_000_000, 3, require_charging=True)
    assert spec.policy == RoundPolicy(5, 30.0, 10.5, 2.0, 20.0, eligibility)
    assert isinstance(recipe.training.learning_rate, float)


def test_every_field_can_be_set_by_an_option_which_wins(tmp_path: Path) -> None:
    recipe_settings = {
        **{option.name: None for option in RECIPE_OPTIONS},
        "rounds": 9,
        "class_names": "sun, moon",
        "mean": "0.2",
        "alpha": 0.9,
        "synthetic_images": 5,
        "synthesis_learning_rate": 0.5,
        "minimum_devices": 6,
        "compression": "int8",
    }
    spec = spec_from(recipe_file(tmp_path, WHOLE), recipe_settings)
    assert spec.recipe.rounds == 9
    assert spec.recipe.class_names == ("sun", "moon")
    assert spec.recipe.normalisation.mean == (0.2,)
    assert spec.recipe.training.alpha == 0.9
    assert isinstance(spec.recipe.method, Hfmds)
    assert spec.recipe.method.samples_per_device == 5
    assert spec.recipe.method.learning_rate == 0.5
    assert spec.recipe.training.learning_rate == 1.0
    assert spec.policy.minimum_devices == 6
    assert spec.recipe.compression == "int8"


def test_asynchronous_rounds_have_their_own_table(tmp_path: Path) -> None:
    text = "[asynchronous]\nbuffer_size = 4\nmax_staleness = 3"
    spec = spec_from(recipe_file(tmp_path, text), {}, ["asynchronous.staleness_exponent=1"])
    assert spec.policy.asynchronous == Asynchronous(4, staleness_exponent=1.0, max_staleness=3)
    with pytest.raises(ConfigurationError, match=r"asynchronous\.buffer_size"):
        spec_from(None, {}, ["asynchronous.concurrency=2"])


def test_evaluation_early_stop_and_retention_can_be_set(tmp_path: Path) -> None:
    text = "[evaluation]\ndevices = 5\n[early_stop]\npatience_rounds = 3\nmin_improvement = 0.25"
    policy = spec_from(recipe_file(tmp_path, text), {}, ["retention.keep_last=2"]).policy
    assert policy.evaluation == EvaluationByDevices(devices=5)
    assert policy.early_stop == EarlyStop(3, 0.25)
    assert policy.retention == Retention(keep_last=2)
    assert spec_from(None, {}).policy.early_stop is None
    with pytest.raises(ConfigurationError, match=r"early_stop\.patience_rounds"):
        spec_from(None, {}, ["early_stop.min_improvement=0.5"])


def test_a_boolean_can_be_set_without_changing_other_keys(tmp_path: Path) -> None:
    for text, expected in (("true", True), ("false", False)):
        spec = spec_from(None, {}, [f"eligibility.require_charging={text}"])
        assert spec.policy.eligibility.require_charging is expected
    complaint = r"eligibility\.require_charging is .*; it must be true or false"
    with pytest.raises(ConfigurationError, match=complaint):
        spec_from(None, {}, ["eligibility.require_charging=1"])
    with pytest.raises(ConfigurationError, match=complaint):
        spec_from(recipe_file(tmp_path, "[eligibility]\nrequire_charging = 1"), {})


def test_every_key_and_every_option_is_described() -> None:
    assert all(key.field.description for key in KEYS.values())
    assert len({option.name for option in RECIPE_OPTIONS}) == len(RECIPE_OPTIONS)


OF_EVERY_METHOD: list[tuple[str, Method]] = [
    ("method = 'fedavg'", FedAvg()),
    ("method = 'fedprox'\n[fedprox]\nmu = 1", FedProx(mu=1.0)),
    ("method = 'moon'\n[moon]\ntemperature = 0.25", Moon(temperature=0.25)),
    ("method = 'fedgen'\n[fedgen]\nhidden_size = 7", FedGen(hidden_size=7)),
    ("method = 'fedmix'\n[fedmix]\nmixing = 0.5", FedMix(mixing=0.5)),
    ("method = 'fedgan'\n[fedgan]\ngan_rounds = 3", FedGan(gan_rounds=3)),
    ("method = 'hfmds'\n[hfmds]\nmu = 0", Hfmds(mu=0.0)),
    ("", Hfmds()),
]


@pytest.mark.parametrize(("text", "expected"), OF_EVERY_METHOD)
def test_every_method_can_be_set_in_a_file(tmp_path: Path, text: str, expected: Method) -> None:
    assert spec_from(recipe_file(tmp_path, text), {}).recipe.method == expected


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("fedprox", ["fedprox.mu=0.1"], FedProx(mu=0.1)),
        ("moon", ["moon.mu = 1", "moon.temperature=2"], Moon(1.0, 2.0)),
        ("fedgen", ["fedgen.noise_size=3"], FedGen(noise_size=3)),
        ("hfmds", ["hfmds.every_rounds=4"], Hfmds(every_rounds=4, first_round=4)),
        (None, ["method=fedmix", "fedmix.images_per_average=5"], FedMix(images_per_average=5)),
    ],
)
def test_any_key_can_be_set(method: str | None, settings: list[str], expected: Method) -> None:
    assert spec_from(None, {"method": method}, settings).recipe.method == expected


def test_settings_win_over_the_file_and_keep_their_type(tmp_path: Path) -> None:
    settings = ["rounds=9", "training.alpha=1", "class_names=sun, moon", "normalisation.mean=0.2"]
    recipe = spec_from(recipe_file(tmp_path, WHOLE), {}, settings).recipe
    assert recipe.rounds == 9
    assert isinstance(recipe.training.alpha, float)
    assert recipe.class_names == ("sun", "moon")
    assert recipe.normalisation.mean == (0.2,)


@pytest.mark.parametrize(
    ("recipe_settings", "settings", "complaint"),
    [
        ({}, ["fedprox.mu"], r"--set fedprox\.mu: write it as KEY=VALUE"),
        ({}, ["fedprox.mue=1"], r"--set: unknown key fedprox\.mue; did you mean fedprox\.mu\?"),
        ({}, ["=1"], "--set =1: write it as KEY=VALUE"),
        ({}, ["fedprox=1"], r"--set: unknown key fedprox; .* its keys are fedprox\.mu$"),
        ({}, ["fedavg=1"], "--set: unknown key fedavg; it is a table without keys"),
        ({}, ["rounds=1.5"], "--set: rounds is '1.5'; it must be a whole number"),
        ({}, ["hfmds.mu=hard"], r"--set: hfmds\.mu is 'hard'; it must be a number"),
        ({}, ["normalisation.std=a"], r"--set: normalisation\.std is 'a'; it must be numbers with"),
        ({}, ["rounds=3", "rounds=4"], "rounds is given twice"),
        ({"rounds": 2**31}, [], "rounds is 2147483648; it must be at most 2147483647"),
        (
            {"seed": 2**63},
            [],
            "seed is 9223372036854775808; it must be at most 9223372036854775807",
        ),
        ({"alpha": 0.5}, ["training.alpha=0.5"], r"training\.alpha is given twice"),
        ({"method": "moon"}, ["moon.temperature=0"], r"moon\.temperature is 0\.0; .* above 0"),
        ({"method": "fedgan", "rounds": 20}, [], "fedgan prepares for 20"),
        ({"method": "fedgan"}, ["fedmix.mixing=0"], r"fedmix\.mixing is given, but .* is fedgan"),
        (
            {"method": "moon", "mu": 1.0},
            [],
            r"^--mu is given, but the method is moon; write --set moon\.mu=1, or choose .* hfmds$",
        ),
        ({"method": "moon"}, ["hfmds.mu=1"], r"^hfmds\.mu is given, .*; write moon\.mu, or choose"),
        (
            {"method": "moon", "synthesis_steps": 3},
            [],
            r"^--synthesis-steps is given, but .*; leave it out, or choose method hfmds$",
        ),
    ],
)
def test_wrong_settings_are_named(
    recipe_settings: dict[str, object], settings: list[str], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        spec_from(None, recipe_settings, settings)


def test_the_first_refresh_follows_the_interval() -> None:
    method = spec_from(None, {"refresh_every": 4}).recipe.method
    assert method == Hfmds(every_rounds=4, first_round=4)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[training]\nalpa = 1", "unknown key training.alpa; did you mean training.alpha"),
        ("[trainig]\nalpha = 1", "did you mean training.alpha"),
        ("momentum = 1", "did you mean training.momentum"),
        ("[training]\nmu = 1", r"did you mean hfmds\.mu or fedprox\.mu or moon\.mu\?"),
        ("[synthesis]\nsteps = 1", r"did you mean hfmds\.steps\?"),
        ("[fedprox]\nwarmth = 1", r"unknown key fedprox\.warmth; known are fedprox\.mu$"),
        ("training = 1", r"training; it is a table, and its keys are training\.batch_size, "),
        ("[trainnig]", r"recipe.toml: unknown table \[trainnig\]; did you mean \[training\]\?"),
        ("[xyz]", r"unknown table \[xyz\]; known are model, normalisation, training, aggreg"),
        ("[moon]", r"table \[moon\] is given, but the method is hfmds; .* choose method moon"),
        ("colour = 'red'", "unknown key colour; known are method, rounds"),
        ("rounds = 1.5", "rounds is 1.5; it must be a whole number"),
        ("rounds = true", "rounds is True; it must be a whole number"),
        ("[training]\nalpha = 'much'", "training.alpha is 'much'; it must be a number"),
        ("[training]\nalpha = 2", "training.alpha is 2.0; it must be in"),
        ("[normalisation]\nmean = 0.5", "normalisation.mean is 0.5; it must be a list"),
        ("[normalisation]\nmean = ['a']", "a list of numbers"),
        ("class_names = [1]", "a list of strings"),
        ("class_names = ['cat']", "1 class names for 10 classes"),
        ("method = 'fedsgd'", "method is 'fedsgd'; it must be one of hfmds, fedavg, fedprox"),
        ("method = 'fedavg'\n[hfmds]\nsteps = 3", "hfmds.steps is given, but the method is fedavg"),
        ("[fedprox]\nmu = 3", r"fedprox\.mu is given, but .* choose method fedprox"),
        ("rounds = = 3", "is not TOML"),
    ],
)  # fmt: skip
def test_the_error_of_a_wrong_recipe_names_the_remedy(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        spec_from(recipe_file(tmp_path, text), {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml"):
        spec_from(tmp_path / "nowhere.toml", {})


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"--mean: .*'a,b'"):
        spec_from(None, {"mean": "a,b"})
    with pytest.raises(ConfigurationError, match=r"training\.alpha is nan"):
        spec_from(None, {"alpha": float("nan")})
    with pytest.raises(ConfigurationError, match="could never close"):
        spec_from(None, {"cohort_size": 2, "minimum_devices": 3})


def test_aggregation_can_be_set() -> None:
    settings = ["aggregation.rule=trimmed_mean", "aggregation.trimmed_fraction=0.25"]
    spec = spec_from(None, {"minimum_devices": 4}, settings)
    assert spec.recipe.aggregation == AggregationRecipe(rule="trimmed_mean", trimmed_fraction=0.25)
    assert spec_from(None, {}).recipe.aggregation == AggregationRecipe()


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("aggregation.rule=mode", "aggregation.rule is 'mode'; it must be one of mean, median"),
        ("aggregation.momentum=0.5", "aggregation.optimiser is none; leave it out, or choose fed"),
        ("aggregation.rules=median", r"unknown key aggregation.rules; did you mean .*\.rule\?"),
        ("aggregation.rule=multi_krum", "policy.minimum_devices is 1, but .* at least 5 devices"),
        ("compression=zip", "compression is 'zip'; it must be one of none, fp16, int8"),
    ],
)
def test_a_wrong_aggregation_setting_is_named(setting: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        spec_from(None, {}, [setting])


def test_pool_policies_can_be_set(tmp_path: Path) -> None:
    settings = [
        "pool.psnr_nearest_max_db=20",
        "pool.leakage_action=drop",
        "pool.refresh=accumulate",
    ]
    expected = PoolPolicy(
        psnr_nearest_max_db=20, leakage_action="drop", refresh="accumulate", near_threshold=0.45
    )
    assert spec_from(None, {}, settings).recipe.pool == expected
    table = "[pool]\npsnr_nearest_max_db = 20\nleakage_action = 'drop'\nrefresh = 'accumulate'"
    assert spec_from(recipe_file(tmp_path, table), {}).recipe.pool == expected
    assert spec_from(None, {}).recipe.pool == PoolPolicy(near_threshold=0.45)
    assert spec_from(None, {}, ["pool.near_threshold=0.35"]).recipe.pool == PoolPolicy()
    assert spec_from(None, {"method": "fedmix"}).recipe.pool == PoolPolicy()


@pytest.mark.parametrize(
    ("method", "setting", "complaint"),
    [
        ("hfmds", "pool.refresh=never", "pool.refresh is 'never'; it must be one of replace"),
        ("hfmds", "pool.leakage_action=drop", "but no sample can be above a limit; set one of"),
        ("hfmds", "pool.psnr_max=20", "unknown key pool.psnr_max; did you mean pool.psnr_"),
        ("fedavg", "pool.max_pool_samples=20", "settings of pool are given, but fedavg has no"),
    ],
)
def test_impossible_pool_policies_are_refused(method: str, setting: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        spec_from(None, {"method": method}, [setting])
