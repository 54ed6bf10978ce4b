from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hfmds.algorithm.recipes import ModelSpec
from hfmds.errors import InvalidInput, Unavailable
from hfmds.plans.library import PlanLibrary, plan_key

MODEL = ModelSpec("paper-cnn", channels=1, height=20, width=20)


def test_a_key_stands_for_one_model() -> None:
    models = [MODEL, replace(MODEL, height=24), replace(MODEL, architecture="resnet-gn")]
    assert len({plan_key(model) for model in models}) == 3
    assert plan_key(replace(MODEL)) == plan_key(MODEL)
    assert len(plan_key(MODEL)) == 64


def test_what_was_made_before_is_found(tmp_path: Path) -> None:
    (tmp_path / plan_key(MODEL)).write_bytes(b"a plan")
    assert PlanLibrary(tmp_path).plan(MODEL) == b"a plan"


@pytest.mark.integration
def test_a_network_that_cannot_be_built_has_no_plan_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="was not made: paper-cnn needs images of at least 16"):
        PlanLibrary(tmp_path).plan(replace(MODEL, height=8, width=8))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_closing_ends_what_is_being_made(tmp_path: Path) -> None:
    library = PlanLibrary(tmp_path)
    told: list[Exception] = []

    def make() -> None:
        try:
            library.plan(MODEL)
        except Unavailable as error:
            told.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    library.close()
    thread.join(30)
    assert not thread.is_alive()
    assert "stopping" in str(told[0])
    assert list(tmp_path.iterdir()) == []
