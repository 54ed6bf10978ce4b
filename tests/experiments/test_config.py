"""Configs: how files and sizes are put together, and what is refused."""

from pathlib import Path

import pytest

from hfmds.errors import ConfigurationError
from hfmds.experiments import library
from hfmds.experiments.config import read_experiment, sizes_of
from hfmds.experiments.experiment import PaperNumber, Sweep
from tests.experiments.tiny import CONFIG, an_experiment, write_config

SHIPPED = [(name, size) for name in library.names() for size in sizes_of(library.find(name))]


@pytest.mark.parametrize(("name", "size"), SHIPPED)
def test_shipped_configs_have_three_sizes_and_both_controls(name: str, size: str) -> None:
    experiment = read_experiment(library.find(name), size)
    assert set(sizes_of(library.find(name))) == {"small", "paper", "paper-cifar100"}
    assert experiment.controls == ("FedAvg", "FedAvg lr/10", "FedAvg lr/10 later", "noise pool")
    assert experiment.arms["FedAvg lr/10"]["training.learning_rate"] == "0.1x"
    assert experiment.arms["noise pool"]["hfmds.steps"] == 0


def test_shipped_configs_are_those_of_the_repository() -> None:
    folder = Path(__file__).parents[2] / "experiments"
    assert folder.is_symlink()
    assert folder.resolve() == library.FOLDER.resolve()
    assert "common" not in library.names()
    assert "table2" in library.names()


def test_the_paper_size_is_the_papers_table_1() -> None:
    paper = read_experiment(library.find("table2"), "paper").settings
    assert paper == {
        "data": "cifar10",
        "method": "fedavg",
        "rounds": 100,
        "split.devices": 20,
        "training.batch_size": 10,
        "training.local_epochs": 1,
        "training.learning_rate": 0.005,
        "training.momentum": 0.9,
        "training.weight_decay": 0.0005,
        "training.alpha": 0.1,
        "hfmds.samples_per_device": 100,
        "hfmds.steps": 500,
        "hfmds.every_rounds": 20,
        "hfmds.first_round": 20,
        "hfmds.learning_rate": 0.02,
        "hfmds.mu": 0.5,
        "hfmds.prototype_momentum": 0.5,
    }


def test_paper_numbers_keep_their_deviation() -> None:
    numbers = read_experiment(library.find("table2"), "small").paper_numbers["accuracy"]
    assert numbers["HFMDS-FL"]["Dir(0.01)"] == PaperNumber(36.05, 3.08)
    costs = read_experiment(library.find("table3"), "small").paper_numbers["gflops"]
    assert costs["FedGAN"][""] == PaperNumber(135.14, None)


def test_later_layers_win(tmp_path: Path) -> None:
    write_config(
        tmp_path,
        "settings: {rounds: 1, cohort_size: 1, test_images: 1, data: a}\n"
        "sizes: {small: {settings: {cohort_size: 2, test_images: 2, data: b}}}\n",
        "base",
    )
    text = (
        "title: x\ninclude: base.yaml\nsettings: {method: fedavg, test_images: 3, data: c}\n"
        "splits: [one: {}]\narms: [one: {}]\nseeds: [4]\n"
        "sizes: {small: {settings: {data: d}}}\n"
    )
    settings = an_experiment(tmp_path, text).settings
    assert settings == {
        "rounds": 1, "cohort_size": 2, "test_images": 3, "data": "d", "method": "fedavg",
    }  # fmt: skip


def test_ours_can_be_included_from_anywhere(tmp_path: Path) -> None:
    text = "title: x\ninclude: common.yaml\nsplits: [Dir(0.05)]\narms: [FedAvg]\ncontrols: []\n"
    experiment = an_experiment(tmp_path, text)
    assert experiment.settings["hfmds.steps"] == 60
    assert experiment.splits["Dir(0.05)"]["split.concentration"] == 0.05


def test_a_size_replaces_lists(tmp_path: Path) -> None:
    assert an_experiment(tmp_path).seeds == (0, 1)
    assert an_experiment(tmp_path, size="one").seeds == (0,)


def test_a_sweep_is_checked_as_settings_are(tmp_path: Path) -> None:
    swept = an_experiment(tmp_path, CONFIG + "sweep: {setting: hfmds.mu, values: [0, 1]}\n")
    assert swept.sweep == Sweep("hfmds.mu", "hfmds.mu", (0.0, 1.0))
    assert swept.cells == 3 * 2 * 2


def test_yaml_may_merge_mappings(tmp_path: Path) -> None:
    """Own keys count more than merged ones, also of a mapping that is merged itself."""
    text = CONFIG.replace(
        "FedAvg: {}",
        "FedAvg: &one {rounds: 5, cohort_size: 2}\n"
        "  two: &two {<<: *one, rounds: 6}\n"
        "  three: {<<: *two, cohort_size: 1}",
    ).replace("arms: [FedAvg,", "arms: [FedAvg, two, three,")
    arms = an_experiment(tmp_path, text).arms
    assert arms["two"] == {"rounds": 6, "cohort_size": 2}
    assert arms["three"] == {"rounds": 6, "cohort_size": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("title: Tiny", "titel: Tiny"), "unknown key titel; did you mean title?"),
        (("title: Tiny", "report: bars"), "report is 'bars'; it must be one of accuracy, cost"),
        (("title: Tiny", "title: [1]"), "title is [1]; it must be text"),
        (("title: Tiny", "title: Tiny\ntitle: Tiny"), "title is there twice"),
        (("title: Tiny\n", ""), "has no title"),
        (("title: Tiny", "title: Tiny\ninclude: tiny.yaml"), "includes itself"),
        (("title: Tiny", "title: Tiny\ninclude: other.yaml"), "cannot read the config"),
        (("rounds: 4", "rouds: 4"), "no setting rouds; did you mean rounds?"),
        (("{method: hfmds}", "{method: hfmd}"), "arm 'HFMDS': method is 'hfmd'; did you mean hfm"),
        (("arms: [FedAvg, slow", "arms: [FedAvg, slov"), "'slov' is not known; did you mean slow"),
        (("arms: [FedAvg, slow", "arms: [FedAvg, FedAvg"), "FedAvg is there twice"),
        (("arms: [FedAvg, slow", "arms: [FedAvg, [slow]"), "neither a name nor one name with"),
        (("arms: [FedAvg, slow, HFMDS]", "arms: []"), "must be a list of names"),
        (("controls: [FedAvg", "controls: [FedAg"), "'FedAg' is not among the arms"),
        (("seeds: [0, 1]", "seeds: [0, 0]"), "each may be there once"),
        (("seeds: [0, 1]", "seeds: [-1]"), "must be whole numbers from 0 on"),
        (("last_rounds: 2", "last_rounds: 0"), "last_rounds is 0; it must be at least 1"),
        (("last_rounds: 2", "sweep: {setting: mu, values: [1]}"), "no setting mu; did you mean"),
        (("last_rounds: 2", "sweep: {setting: rounds}"), "must have a setting and values"),
        (("last_rounds: 2", "sweep: {setting: [1], values: [1]}"), "there is no setting [1]"),
        (
            ("last_rounds: 2", "sweep: {setting: training, values: [{alpha: 0.5}]}"),
            "there is no setting training; did you mean ",
        ),
        (
            ("last_rounds: 2", "tsne: {panels: [FedAvg], mu: 0.5, classes: 2}"),
            "tsne: mu is 0.5; it must be a list of numbers",
        ),
        (
            ("last_rounds: 2", "tsne: {panels: [FedAvg], mu: [1, 2x], classes: 2}"),
            "tsne: mu is [1, '2x']; none of them may be relative",
        ),
        (("last_rounds: 2", "tsne: {panels: [FedAvg]}"), "must have panels, mu and classes"),
        (("last_rounds: 2", "paper_numbers: {speed: {}}"), "unknown key speed"),
        (("last_rounds: 2", "paper_numbers: {psnr: {FedAvg: much}}"), "'much' must be a number"),
        (
            ("last_rounds: 2", "paper_numbers: {accuracy: 3}"),
            "accuracy is 3; it must be arms with their numbers",
        ),
        (("FedAvg: {}", "FedAvg: {<<: 3}"), "expected a mapping or list of mappings"),
        (("one: {seeds", "one: {title: x, seeds"), "size one has an unknown key title"),
        (("one: {seeds: [0]}", "one: 5"), "size one is 5"),
    ],
)
def test_an_error_says_what_is_wrong(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in CONFIG
    with pytest.raises(ConfigurationError) as raised:
        an_experiment(tmp_path, CONFIG.replace(*change), size="one")
    assert message in str(raised.value)


def test_an_unknown_size_says_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no size 'smal'; did you mean small"):
        an_experiment(tmp_path, size="smal")


@pytest.mark.parametrize("text", ["- 1\n", "", "a: [", "a: 'b\n"])
def test_what_is_no_config_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="the config"):
        an_experiment(tmp_path, text)


def test_experiments_are_found_by_name_or_file(tmp_path: Path) -> None:
    own = write_config(tmp_path)
    assert library.find(str(own)) == own
    assert library.find("table2") == library.FOLDER / "table2.yaml"
    with pytest.raises(
        ConfigurationError, match=r"no experiment 'tabel2', .*; did you mean table2"
    ):
        library.find("tabel2")
    with pytest.raises(ConfigurationError, match="there is no config"):
        library.find(str(tmp_path / "other.yaml"))
