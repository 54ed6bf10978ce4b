"""One trial: to its end, stopped and resumed at every round, or into divergence."""

import signal
from pathlib import Path

import numpy as np
import pytest

from hfmds.errors import ConfigurationError, InvalidInput
from hfmds.experiments.trials.running import Stopped, run_trial
from hfmds.experiments.trials.trial import Trial
from hfmds.experiments.trials.trial_folder import (
    CHECKPOINT,
    CONFIG,
    FINAL,
    MADE,
    RESULT,
    TrialFolder,
)
from hfmds.experiments.trials.worker import raise_stopped_once
from tests.experiments.tiny import a_trial, some_data

TRIALS: dict[str, dict[str, object]] = {
    **{
        name: {"method": name} for name in ("fedavg", "moon", "fedgen", "hfmds", "fedgan", "fedmix")
    },
    # What the server, and each device besides MOON's last model, remember.
    "with adam and int8": {
        "method": "moon",
        "aggregation__optimiser": "fedadam",
        "compression": "int8",
    },
}


def run(trial: Trial, results: Path, stop_after: int | None = None, save: float = 0.0) -> bytes:
    """The trial's result as stored."""

    def round_done(done: int, of: int) -> None:
        if done == stop_after:
            raise Stopped

    folder = TrialFolder(results, trial.trial_id)
    run_trial(trial, some_data(), folder, round_done, save)
    return (folder.path / RESULT).read_bytes()


def test_a_trial_records_every_round_and_refresh(tmp_path: Path) -> None:
    trial = a_trial(method="hfmds")
    folder = TrialFolder(tmp_path, trial.trial_id)
    told: list[tuple[int, int]] = []
    result = run_trial(trial, some_data(), folder, lambda *done: told.append(done))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert result == folder.result()
    assert (result["status"], result["error"], result["preparation_rounds"]) == ("done", None, 0)
    assert [one["round"] for one in result["rounds"]] == [1, 2, 3, 4]
    assert ["pool" in one for one in result["rounds"]] == [False, True, False, True]
    assert all(0 <= one["accuracy"] <= 1 and one["loss"] > 0 for one in result["rounds"])
    pool = result["rounds"][1]["pool"]
    assert pool["samples"] == 9
    assert 0 < pool["leakage"]["paired_mean"] < 20
    assert 0 <= pool["health"]["accuracy"] <= 1
    assert sorted(path.name for path in folder.path.iterdir()) == [CONFIG, FINAL, MADE, RESULT]
    final = folder.final()
    assert final is not None
    assert final.checkpoint.round_number == 4
    assert final.fleet["pool/round-4/pixels"].shape == (9, 1, 16, 16)


@pytest.mark.matrix(one_in=2)
@pytest.mark.parametrize("name", TRIALS)
def test_stopped_after_any_round_it_ends_the_same(tmp_path: Path, name: str) -> None:
    trial = a_trial(**TRIALS[name])
    undisturbed = run(trial, tmp_path / "undisturbed")
    for stop in range(1, trial.recipe.rounds):
        results = tmp_path / str(stop)
        with pytest.raises(Stopped):
            run(trial, results, stop_after=stop, save=1e9)  # saved only because it was stopped
        saved = TrialFolder(results, trial.trial_id).saved()
        assert saved is not None
        assert saved.checkpoint.round_number == stop
        assert run(trial, results) == undisturbed
    final = TrialFolder(tmp_path / "1", trial.trial_id).final()
    other = TrialFolder(tmp_path / "undisturbed", trial.trial_id).final()
    assert final is not None
    assert other is not None
    for name, weight in final.checkpoint.weights.items():
        np.testing.assert_array_equal(weight, other.checkpoint.weights[name], err_msg=name)


def test_a_broken_checkpoint_is_a_new_beginning(tmp_path: Path) -> None:
    trial = a_trial()
    undisturbed = run(trial, tmp_path / "undisturbed")
    folder = TrialFolder(tmp_path / "broken", trial.trial_id)
    folder.path.mkdir(parents=True)
    (folder.path / CHECKPOINT).write_bytes(b"half a file")
    assert run(trial, tmp_path / "broken") == undisturbed


def test_a_trial_at_its_end_is_not_run_again(tmp_path: Path) -> None:
    trial = a_trial()
    run(trial, tmp_path)
    assert run(trial, tmp_path, stop_after=1) == run(trial, tmp_path)


def test_checkpoints_wait_until_there_is_something_to_lose(tmp_path: Path) -> None:
    trial = a_trial()
    folder = TrialFolder(tmp_path, trial.trial_id)
    clock = iter(range(0, 1000, 10))  # seconds: each look at the clock is 10 later
    saved: list[bool] = []
    run_trial(
        trial,
        some_data(),
        folder,
        lambda *done: saved.append((folder.path / CHECKPOINT).exists()),
        save_seconds=25,
        clock=lambda: next(clock),
    )
    assert saved == [False, False, False, True]


def test_divergence_is_a_result_that_names_round_device_and_step(tmp_path: Path) -> None:
    trial = a_trial(training__learning_rate=1e30)
    folder = TrialFolder(tmp_path, trial.trial_id)
    result = run_trial(trial, some_data(), folder)
    assert result["status"] == "failed"
    assert result["error"].startswith("round 1, device 'device-0': training diverged: the loss is ")
    assert "at step 2 of 2" in result["error"]
    assert result["rounds"] == []
    good = folder.saved()
    assert good is not None
    assert good.checkpoint.round_number == 0
    assert all(np.isfinite(weight).all() for weight in good.checkpoint.weights.values())


def test_late_divergence_keeps_the_rounds_before_it(tmp_path: Path) -> None:
    """The pool's learning rate breaks the synthesis of round 2; round 1 was good."""
    trial = a_trial(method="hfmds", hfmds__learning_rate=1e38, hfmds__steps=3)
    folder = TrialFolder(tmp_path, trial.trial_id)
    result = run_trial(trial, some_data(), folder)
    assert result["status"] == "failed"
    assert result["error"].startswith("round 2, device 'device-0': synthesis diverged")
    assert [one["round"] for one in result["rounds"]] == [1]
    good = folder.saved()
    assert good is not None
    assert good.checkpoint.round_number == 1


def test_a_servers_generator_that_diverges_is_recorded_with_its_rounds(tmp_path: Path) -> None:
    trial = a_trial(method="fedgen", fedgen__generator_learning_rate=1e38)
    result = run_trial(trial, some_data(), TrialFolder(tmp_path, trial.trial_id))
    assert result["status"] == "done"
    for one in result["rounds"]:
        assert one["trouble"].startswith("the generator stays as it was: ")


def test_another_error_is_no_result(tmp_path: Path) -> None:
    trial = a_trial()
    undisturbed = run(trial, tmp_path / "undisturbed")

    def refuse(done: int, of: int) -> None:
        raise InvalidInput("not a divergence")

    folder = TrialFolder(tmp_path, trial.trial_id)
    with pytest.raises(InvalidInput, match="not a divergence"):
        run_trial(trial, some_data(), folder, refuse)
    assert folder.result() is None
    assert run(trial, tmp_path) == undisturbed


def test_only_the_first_signal_stops_so_that_the_next_does_not_interrupt_the_saving() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        raise_stopped_once()
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_data_than_planned_are_refused(tmp_path: Path) -> None:
    trial = a_trial()
    with pytest.raises(ConfigurationError, match="has changed"):
        run_trial(trial, some_data(seed=1), TrialFolder(tmp_path, trial.trial_id))
