"""Pages and numbers, from results that were never computed."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hfmds.data.split_summary import SplitSummary
from hfmds.errors import ConfigurationError, NotFound
from hfmds.experiments.experiment import PaperNumber, Sweep
from hfmds.experiments.report.cell_results import read_results, summarise
from hfmds.experiments.report.report_folder import ReportFolder, file_name, write_report
from hfmds.experiments.trials.trial_folder import Record, TrialFolder, write_json
from hfmds.experiments.trials.trial_plan import TrialPlan, plan_trials
from tests.experiments.tiny import a_shelf, an_experiment

MADE = {"seconds": 36.0, "python": "3", "numpy": "2", "torch": "2", "code": "abc"}


def a_result(accuracies: list[float], pool: bool = False, error: str | None = None) -> Record:
    rounds: list[Record] = [
        {"round": t, "accuracy": accuracy, "loss": 1.0, "training_loss": 1.0}
        for t, accuracy in enumerate(accuracies, 1)
    ]
    if pool:
        leakage = dict.fromkeys(
            ("paired_p99", "paired_max", "nearest_mean", "nearest_p99", "nearest_max"), 11.0
        )
        for number, psnr in ((1, 8.0), (3, 9.0)):
            rounds[number]["pool"] = {
                "samples": 10 * number,
                "leakage": {"paired_mean": psnr, **leakage},
                "health": {
                    "accuracy": 0.97, "gradient_ratio": 0.8, "real_margin": 1.0, "hard_margin": 0.5,
                },
            }  # fmt: skip
    status = "failed" if error else "done"
    return {"status": status, "error": error, "preparation_rounds": 0, "rounds": rounds}


RESULTS = {
    ("FedAvg", 0): a_result([0.1, 0.2, 0.30, 0.32]),
    ("FedAvg", 1): a_result([0.1, 0.2, 0.20, 0.24]),
    ("slow", 0): a_result([0.1, 0.2, 0.30, 0.34]),
    ("slow", 1): a_result([0.1], error="round 2, device 'd': training diverged"),
    ("HFMDS", 0): a_result([0.1, 0.3, 0.40, 0.42], pool=True),
}


def a_plan() -> TrialPlan:
    numbers = {"accuracy": {"HFMDS": {"two classes": PaperNumber(53.74, 0.26)}}}
    return plan_trials(an_experiment(paper_numbers=numbers), a_shelf())


def filled(out: Path, plan: TrialPlan) -> ReportFolder:
    """Of six trials one diverged and one was not run."""
    folder = ReportFolder(out, "tiny", "small")
    folder.keep_outline(plan.outline)
    store(plan, folder)
    return folder


@pytest.fixture
def plan(tmp_path: Path) -> TrialPlan:
    return a_plan()


@pytest.fixture
def folder(tmp_path: Path, plan: TrialPlan) -> ReportFolder:
    return filled(tmp_path / "out", plan)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with its report, for tests that only read it."""
    place = tmp_path_factory.mktemp("report")
    folder = filled(place / "out", a_plan())
    write_report(folder)
    return folder.path


def store(plan: TrialPlan, folder: ReportFolder) -> None:
    for cell in plan.outline.cells:
        if (cell.arm, cell.seed) in RESULTS:
            own = TrialFolder(folder.trials, cell.trial_id)
            own.path.mkdir(parents=True, exist_ok=True)
            write_json(own.path / "result.json", RESULTS[cell.arm, cell.seed])
            write_json(own.path / "made.json", MADE)


def test_the_table_has_means_deviations_and_the_papers_numbers(written: Path) -> None:
    lines = (written / "table.md").read_text().splitlines()
    assert "**Not complete: 5 of 6 cells.**" in lines
    # FedAvg: (31 + 22) / 2, and their deviation; slow and HFMDS have one seed.
    # Bold is the best of those with all seeds: FedAvg alone.
    assert "| FedAvg | **26.5 ± 6.4** | – |" in lines
    assert "| slow (control) | 32.0 (1 of 2 diverged) | – |" in lines
    assert "| HFMDS | 41.0 (1 of 2 not run) | 53.74 ± 0.26 |" in lines
    assert "| two classes: HFMDS | +10.0 (+10.0) | +9.0 (+9.0) |" in lines
    assert "| two classes: HFMDS | 30 | 9.0 | 11.0 | 11.0 | 97.0 | 0.80 | 1.00 | 0.50 |" in lines
    assert any("seed 1 (trial" in line and "training diverged" in line for line in lines)
    assert "![bars](bars.png)" in lines


def test_every_picture_on_the_page_is_drawn(written: Path) -> None:
    page = (written / "table.md").read_text()
    pictures = sorted(path.name for path in written.glob("*.png"))
    assert pictures == ["bars.png", "curves-two-classes.png"]
    for name in pictures:
        assert f"]({name})" in page
        with Image.open(written / name) as image:
            assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 20
    assert not list(written.glob(".*"))


def test_every_split_has_its_picture_and_its_summary_under_it(folder: ReportFolder) -> None:
    drawn: list[str] = []

    def draw(path: Path, summary: SplitSummary, title: str) -> None:
        drawn.append(f"{title}: {summary.images} images")
        path.write_bytes(b"a picture")
        descriptor = os.open(folder.path, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):  # another command has to wait
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)

    write_report(folder, draw)
    assert drawn == ["digits:16, 2 classes per device, seed 0: 24 images"]
    assert (folder.path / "split-two-classes.png").read_bytes() == b"a picture"
    page = (folder.path / "table.md").read_text()
    start = page.index("## The splits")
    section = page[start : page.index("## Setting")]
    places = [
        section.index("**digits:16, 2 classes per device, seed 0**"),
        section.index("![split-two-classes](split-two-classes.png)"),
        section.index("A device holds 8.0 images of 2.0 classes on average"),
    ]
    assert places == sorted(places)


def test_a_damaged_result_says_which_folder_to_delete(
    plan: TrialPlan, folder: ReportFolder
) -> None:
    own = TrialFolder(folder.trials, plan.outline.cells[0].trial_id)
    (own.path / "result.json").write_text('{"status": "do')
    with pytest.raises(ConfigurationError) as raised:
        write_report(folder)
    assert f"is damaged; delete the folder {own.path} and run the" in str(raised.value)


def test_a_damaged_outline_is_made_again_by_running(folder: ReportFolder) -> None:
    (folder.path / "outline.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="damaged; run the experiment again"):
        write_report(folder)


def test_the_numbers_are_all_there(written: Path) -> None:
    numbers = json.loads((written / "results.json").read_text())
    by_arm = {one["arm"]: one for one in numbers["summary"]}
    assert by_arm["FedAvg"]["accuracy_mean"] == pytest.approx(0.265)
    assert by_arm["FedAvg"]["accuracy_deviation"] == pytest.approx(0.0636396)
    assert (by_arm["slow"]["done"], by_arm["slow"]["diverged"]) == (1, 1)
    assert [one["status"] for one in numbers["results"]] == [
        "done", "done", "done", "done", "failed", "missing",
    ]  # fmt: skip
    assert numbers["results"][2]["curve"] == [0.1, 0.3, 0.40, 0.42]
    # 10 images at 8 dB and 30 at 9 dB
    assert numbers["psnr"] == [{"arm": "HFMDS", "split": "two classes", "by_seed": [8.75]}]
    assert numbers["experiment"]["settings"]["rounds"] == 4
    assert len(numbers["made"]) == 5


def test_rounds_before_the_classifier_are_not_part_of_its_curve(
    plan: TrialPlan, folder: ReportFolder
) -> None:
    own = TrialFolder(folder.trials, plan.outline.cells[0].trial_id)
    write_json(
        own.path / "result.json", {**a_result([0.0, 0.0, 0.5, 0.7]), "preparation_rounds": 2}
    )
    first = read_results(plan.outline, folder.trials).cells[0]
    assert first.curve == (0.5, 0.7)
    assert first.score == pytest.approx(0.6)


def test_what_a_trial_went_on_in_spite_of_is_told(plan: TrialPlan, folder: ReportFolder) -> None:
    cell = plan.outline.cells[0]
    result = a_result([0.1, 0.2, 0.30, 0.32])
    for number in (2, 3):
        result["rounds"][number - 1]["trouble"] = "the generator stays as it was: diverged"
    write_json(TrialFolder(folder.trials, cell.trial_id).path / "result.json", result)
    write_report(folder)
    line = (
        f"- two classes: FedAvg, seed 0 (trial {cell.trial_id}), 2 rounds; first in round 2: the "
        "generator stays as it was: diverged"
    )
    assert line in (folder.path / "table.md").read_text().splitlines()
    told = json.loads((folder.path / "results.json").read_text())["results"][0]["troubles"]
    assert len(told) == 2


def test_a_deviation_needs_two_seeds(plan: TrialPlan, folder: ReportFolder) -> None:
    results = read_results(plan.outline, folder.trials)
    alone = summarise(results.at("HFMDS", "two classes"))
    assert (alone.seeds, alone.done, alone.deviation) == (2, 1, None)


@pytest.mark.parametrize(
    ("changes", "line", "picture"),
    [
        (
            {"report": "convergence"},
            "| HFMDS | 10.0 | 30.0 | 40.0 | 42.0 | 2 |",
            "curves-two-classes.png",
        ),
        (
            {"report": "cost"},
            "| HFMDS | 8.75 | – | 2.50 | – |",
            "cost.png",
        ),
        (
            {"sweep": Sweep("hfmds.mu", "mu", (0.5,))},
            "| accuracy (%) | mu 0.5 |",
            "sweep-two-classes.png",
        ),
    ],
)
def test_other_reports(tmp_path: Path, changes: dict[str, Any], line: str, picture: str) -> None:
    plan = plan_trials(an_experiment(**changes), a_shelf())
    folder = filled(tmp_path / "out", plan)
    cost = {
        "training": 1e9, "training_with_pool": 2e9, "synthesis": 1e9, "preparation": 0,
        "training_rounds": 4, "rounds_with_pool": 2, "refreshes": 4, "per_round": 2.5e9,
    }  # fmt: skip
    for cell in plan.outline.cells:
        if cell.arm == "HFMDS" and cell.seed == 0:
            TrialFolder(folder.trials, cell.trial_id).keep_cost(cost)
    write_report(folder)
    assert line in (folder.path / "table.md").read_text().splitlines()
    assert (folder.path / picture).exists()


def test_a_report_of_nothing_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="run the experiment first"):
        write_report(ReportFolder(tmp_path, "table2", "small"))


@pytest.mark.filterwarnings("error")  # which a user would see beside the command's own words
def test_a_report_before_the_first_trial_is_done_is_drawn_in_silence(
    tmp_path: Path, plan: TrialPlan
) -> None:
    folder = ReportFolder(tmp_path / "out", "tiny", "small")
    folder.keep_outline(plan.outline)
    write_report(folder)
    assert (folder.path / "curves-two-classes.png").exists()


def test_pictures_have_plain_names() -> None:
    assert file_name("curves", "Dir(0.01)") == "curves-dir-0.01.png"
    assert file_name("split", "2 classes/client") == "split-2-classes-client.png"
