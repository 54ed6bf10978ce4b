"""The experiments that come with the program, and how experiments are loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from hfmds.errors import ConfigurationError
from hfmds.experiments.experiment import PaperNumber, Sweep, Tsne
from hfmds.experiments.loading import CATALOGUE, load, names
from hfmds.experiments.settings import KEYS, Times
from tests.experiments.tiny import an_experiment, write_experiment

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGES = sorted(path.parent.name for path in RESULTS.glob("*/results.json"))
SHIPPED = [(name, size) for name in names() for size in load(name).sizes]


@pytest.mark.parametrize(("name", "size"), SHIPPED)
def test_shipped_experiments_have_all_controls(name: str, size: str) -> None:
    experiment = load(name).experiment(size)
    assert (experiment.name, experiment.size) == (name, size)
    assert experiment.controls == ("FedAvg", "FedAvg lr/10", "FedAvg lr/10 later", "noise pool")
    rate = experiment.arms["FedAvg lr/10"]["training.learning_rate"]
    assert rate == Times(0.1, "training.learning_rate")
    assert experiment.arms["noise pool"]["hfmds.steps"] == 0


def test_shipped_experiments_have_three_sizes() -> None:
    assert {load(name).sizes for name in names()} == {("small", "paper", "paper-cifar100")}


def test_shipped_experiments_are_those_of_the_repository() -> None:
    folder = Path(__file__).parents[2] / "experiments"
    assert folder.is_symlink()
    assert folder.resolve() == CATALOGUE.resolve()


@pytest.mark.parametrize("page", PAGES)
def test_every_committed_page_is_of_its_experiment(page: str) -> None:
    name, _, size = page.rpartition("-")
    experiment = load(name).experiment(size)
    shown = json.loads((RESULTS / page / "results.json").read_text())["experiment"]
    assert list(experiment.arms) == list(shown["arms"])
    assert list(experiment.splits) == list(shown["splits"])
    assert list(experiment.seeds) == shown["seeds"]
    settings = {**shown["settings"], "data": experiment.settings["data"]}
    assert experiment.settings == settings


def test_the_paper_size_is_the_papers_table_1() -> None:
    settings = load("table2").experiment("paper").settings
    assert settings["training.batch_size"] == 10
    assert settings["training.learning_rate"] == 0.005
    assert settings["hfmds.steps"] == 500
    assert settings["split.devices"] == 20


def test_paper_numbers_keep_their_deviation() -> None:
    numbers = load("table2").experiment("small").paper_numbers["accuracy"]
    assert numbers["HFMDS-FL"]["Dir(0.01)"] == PaperNumber(36.05, 3.08)
    costs = load("table3").experiment("small").paper_numbers["gflops"]
    assert costs["FedGAN"][""] == PaperNumber(135.14, None)


@pytest.mark.parametrize(
    ("changes", "datum"),
    [
        ({"settings": {"rouds": 4}}, "no setting rouds; did you mean rounds"),
        ({"arms": {"one": {"method": "hfmd"}}}, "arm 'one': method is 'hfmd'; did you mean hfmds"),
        ({"arms": {"FedAvg": {"mu": 1}}}, "arm 'FedAvg': there is no setting mu"),
        ({"splits": {"two": {"devices": 1}}}, "split 'two': .* did you mean split.devices"),
        ({"arms": {}}, "has no arms"),
        ({"controls": ("FedAg",)}, "no arm 'FedAg'; did you mean FedAvg"),
        ({"tsne": Tsne(("moon",), (0.0,), 3)}, "no arm 'moon'"),
        ({"seeds": (0, 0)}, "seeds are"),
        ({"seeds": (-1,)}, "seeds are"),
        ({"last_rounds": 0}, "last_rounds is 0"),
        ({"sweep": Sweep("mu", "mu", (1.0,))}, "no setting mu; did you mean"),
    ],
)
def test_an_experiment_that_cannot_be_run_is_refused(changes: dict[str, Any], datum: str) -> None:
    with pytest.raises(ConfigurationError, match=datum):
        an_experiment(**changes)


def test_every_setting_of_every_method_is_a_key() -> None:
    assert {"hfmds.mu", "fedgan.gan_rounds", "split.samples_per_device"} <= set(KEYS)


def test_experiments_are_loaded_by_name_or_from_a_file(tmp_path: Path) -> None:
    own = load(str(write_experiment(tmp_path)))
    assert own.experiment("small").seeds == (0, 1)
    assert own.experiment("one").seeds == (0,)
    with pytest.raises(ConfigurationError, match="no size 'smal'; did you mean small"):
        own.experiment("smal")
    with pytest.raises(ConfigurationError, match=r"'tabel2', .*; did you mean table2"):
        load("tabel2")
    with pytest.raises(ConfigurationError, match=r"other\.py"):
        load(str(tmp_path / "other.py"))


@pytest.mark.parametrize("code", ["x = 1", "def experiment(size:", "import nowhere", "y = z"])
def test_a_file_without_an_experiment_is_refused(tmp_path: Path, code: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(code)
    with pytest.raises(ConfigurationError, match=r"mine\.py"):
        load(str(path))
