from pathlib import Path
from typing import get_type_hints

import pytest

from hfmds.algorithm.types import (
    ModelSpec,
    Normalisation,
    SynthesisRecipe,
    TrainingRecipe,
)
from hfmds.cli.recipes import FIELDS, RECIPE_OPTIONS, spec_from
from hfmds.errors import ConfigurationError
from hfmds.wire.types import RoundPolicy

WHOLE = """
method = "hfmds"
rounds = 7
seed = 3
cohort_size = 4
class_names = ["cat", "dog"]

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

[synthesis]
every_rounds = 3
first_round = 2
samples_per_device = 11
steps = 12
learning_rate = 0.1
mu = 0.25
prototype_momentum = 0.75
matching_weight = 2.0

[policy]
minimum_devices = 2
deadline_seconds = 30
lease_seconds = 10.5
"""


def recipe_file(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_nothing_said_is_the_papers_hfmds() -> None:
    spec = spec_from(None, {})
    assert spec.recipe.training == TrainingRecipe()
    assert spec.recipe.synthesis == SynthesisRecipe()
    assert spec.recipe.model == ModelSpec()
    assert spec.recipe.normalisation == Normalisation((0.5,) * 3, (0.5,) * 3)
    assert spec.policy == RoundPolicy()


def test_every_field_can_be_said_in_a_file(tmp_path: Path) -> None:
    spec = spec_from(recipe_file(tmp_path, WHOLE), {})
    recipe = spec.recipe
    assert (recipe.rounds, recipe.seed, recipe.cohort_size) == (7, 3, 4)
    assert recipe.class_names == ("cat", "dog")
    assert recipe.model == ModelSpec("paper-cnn", 1, 20, 24, 2)
    assert recipe.normalisation == Normalisation((0.1,), (1.0,))
    assert recipe.training == TrainingRecipe(5, 2, 1.0, 0.5, 0.0, 0.3)
    assert recipe.synthesis == SynthesisRecipe(3, 2, 11, 12, 0.1, 0.25, 0.75, 2.0)
    assert spec.policy == RoundPolicy(2, 30.0, 10.5)
    assert isinstance(recipe.training.learning_rate, float)


def test_every_field_can_be_said_in_an_option_and_wins(tmp_path: Path) -> None:
    given = {
        **{option.name: None for option in RECIPE_OPTIONS},
        "rounds": 9,
        "class_names": "sun, moon",
        "mean": "0.2",
        "alpha": 0.9,
        "synthetic_images": 5,
        "synthesis_learning_rate": 0.5,
        "minimum_devices": 3,
    }
    spec = spec_from(recipe_file(tmp_path, WHOLE), given)
    assert spec.recipe.rounds == 9
    assert spec.recipe.class_names == ("sun", "moon")
    assert spec.recipe.normalisation.mean == (0.2,)
    assert spec.recipe.training.alpha == 0.9
    assert spec.recipe.synthesis is not None
    assert spec.recipe.synthesis.samples_per_device == 5
    assert spec.recipe.synthesis.learning_rate == 0.5
    assert spec.recipe.training.learning_rate == 1.0
    assert spec.policy.minimum_devices == 3


def test_fields_cover_the_types() -> None:
    sections = {
        "model": ModelSpec,
        "normalisation": Normalisation,
        "training": TrainingRecipe,
        "synthesis": SynthesisRecipe,
        "policy": RoundPolicy,
    }
    missing = {
        f"{section}.{name}" for section, kind in sections.items() for name in get_type_hints(kind)
    } - {field.key for field in FIELDS}
    assert not missing
    assert len({option.name for option in RECIPE_OPTIONS}) == len(FIELDS)


def test_fedavg_has_no_synthesis() -> None:
    assert spec_from(None, {"method": "fedavg"}).recipe.synthesis is None


def test_the_first_refresh_follows_the_interval() -> None:
    synthesis = spec_from(None, {"refresh_every": 4}).recipe.synthesis
    assert synthesis == SynthesisRecipe(every_rounds=4, first_round=4)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[training]\nalpa = 1", "unknown key training.alpa; did you mean training.alpha"),
        ("[trainig]\nalpha = 1", "did you mean training.alpha"),
        ("momentum = 1", "did you mean training.momentum"),
        ("training = 1", r"write the table \[training\]"),
        ("colour = 'red'", "unknown key colour; known are method, rounds"),
        ("rounds = 1.5", "rounds is 1.5; it must be a whole number"),
        ("rounds = true", "rounds is True; it must be a whole number"),
        ("[training]\nalpha = 'much'", "training.alpha is 'much'; it must be a number"),
        ("[training]\nalpha = 2", "training.alpha is 2.0; it must be in"),
        ("[normalisation]\nmean = 0.5", "normalisation.mean is 0.5; it must be a list"),
        ("[normalisation]\nmean = ['a']", "a list of numbers"),
        ("class_names = [1]", "a list of strings"),
        ("class_names = ['cat']", "1 class names for 10 classes"),
        ("method = 'fedprox'", "method is 'fedprox'; it must be one of hfmds, fedavg"),
        ("method = 'fedavg'\n[synthesis]\nsteps = 3", "synthesis.steps is given, but"),
        ("rounds = = 3", "is not TOML"),
    ],
)  # fmt: skip
def test_a_wrong_recipe_is_told_with_a_remedy(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        spec_from(recipe_file(tmp_path, text), {})


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the recipe .*nowhere.toml: No such"):
        spec_from(tmp_path / "nowhere.toml", {})


def test_wrong_options_are_told() -> None:
    with pytest.raises(ConfigurationError, match="--mean is 'a,b'; it must be numbers with commas"):
        spec_from(None, {"mean": "a,b"})
    with pytest.raises(ConfigurationError, match=r"training\.alpha is nan"):
        spec_from(None, {"alpha": float("nan")})
    with pytest.raises(ConfigurationError, match="could never close"):
        spec_from(None, {"cohort_size": 2, "minimum_devices": 3})
