"""The committed results are those of the experiments as they are configured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hfmds.experiments.config import read_experiment
from hfmds.experiments.library import find

FOLDER = Path(__file__).parents[2] / "docs" / "results"
PAGES = sorted(path.parent.name for path in FOLDER.glob("*/results.json"))


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_of_the_experiment_as_it_is_configured(page: str) -> None:
    name, _, size = page.rpartition("-")
    experiment = read_experiment(find(name), size)
    shown = json.loads((FOLDER / page / "results.json").read_text())["experiment"]
    assert list(experiment.arms) == list(shown["arms"])
    assert list(experiment.splits) == list(shown["splits"])
    assert list(experiment.seeds) == shown["seeds"]
