from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hfmds.domain.recipe import ModelSpec
from hfmds.errors import InvalidInput, Unavailable
from hfmds.plans.format import PlanSpec
from hfmds.plans.plan_library import PlanLibrary, plan_key

MODEL = ModelSpec("paper-cnn", channels=1, height=20, width=20)
SPEC = PlanSpec(MODEL)


def test_a_key_stands_for_one_model_one_method_and_their_graphs() -> None:
    models = [MODEL, replace(MODEL, height=24), replace(MODEL, architecture="resnet-gn")]
    others = [PlanSpec(MODEL, "fedavg"), PlanSpec(MODEL, graphs=("train", "evaluate"))]
    specs = [*map(PlanSpec, models), *others]
    assert len({plan_key(spec) for spec in specs}) == 5
    assert plan_key(replace(SPEC)) == plan_key(SPEC)
    assert len(plan_key(SPEC)) == 64


def test_what_was_made_before_is_found(tmp_path: Path) -> None:
    (tmp_path / plan_key(SPEC)).write_bytes(b"a plan")
    assert PlanLibrary(tmp_path).plan(SPEC) == b"a plan"


class QuickLibrary(PlanLibrary):
    """Makes plans of ten bytes, at once."""

    def _make(self, spec: PlanSpec, path: Path) -> None:
        path.write_bytes(b"0123456789")


def test_the_plans_that_were_not_used_for_longest_leave(tmp_path: Path) -> None:
    library = QuickLibrary(tmp_path, max_bytes=25)
    specs = [PlanSpec(replace(MODEL, height=height)) for height in (20, 21, 22)]
    for day, spec in enumerate(specs[:2]):
        library.plan(spec)
        os.utime(tmp_path / plan_key(spec), (day, day))
    (tmp_path / "note").write_bytes(bytes(100))  # somebody's
    abandoned, under_way = tmp_path / "hfmds-plan-old", tmp_path / "hfmds-plan-new"
    abandoned.mkdir()
    under_way.mkdir()
    os.utime(abandoned, (0, 0))
    library.plan(specs[0])  # now the other one is the oldest
    library.plan(specs[2])
    kept = {plan_key(specs[0]), plan_key(specs[2]), "note", "hfmds-plan-new"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    QuickLibrary(tmp_path, max_bytes=5).plan(specs[1])
    assert {path.name for path in tmp_path.iterdir()} == {
        plan_key(specs[1]),
        "note",
        "hfmds-plan-new",
    }


@pytest.mark.integration
def test_a_network_that_cannot_be_built_has_no_plan_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"paper-cnn.*16x16"):
        PlanLibrary(tmp_path).plan(PlanSpec(replace(MODEL, height=8, width=8)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_closing_ends_what_is_being_made(tmp_path: Path) -> None:
    library = PlanLibrary(tmp_path)
    told: list[Exception] = []

    def make() -> None:
        try:
            library.plan(SPEC)
        except Unavailable as error:
            told.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    library.close()
    thread.join(30)
    assert not thread.is_alive()
    assert "stopping" in str(told[0])
    assert list(tmp_path.iterdir()) == []
