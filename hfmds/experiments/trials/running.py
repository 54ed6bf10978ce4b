"""Runs one trial to its end, from its last checkpoint.

The result depends on the trial alone: not on when it was saved, killed or resumed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import fmean

from hfmds.algorithm.federation import federate
from hfmds.algorithm.local_work import SynthesisHealth
from hfmds.algorithm.methods.method_registry import first_checkpoint
from hfmds.algorithm.simulation.local_fleet import LocalFleet
from hfmds.domain.learning import LabelledImages, RoundResult
from hfmds.errors import ConfigurationError, Diverged
from hfmds.experiments.trials.loaded_data import LoadedData
from hfmds.experiments.trials.provenance import VERSIONS
from hfmds.experiments.trials.trial import Trial
from hfmds.experiments.trials.trial_folder import Record, Saved, TrialFolder

OnRound = Callable[[int, int], None]
"""A function that takes the number of completed rounds and of all rounds."""


class Stopped(BaseException):
    """The process must stop; like KeyboardInterrupt, this is no error."""


def run_trial(
    trial: Trial,
    data: LoadedData,
    folder: TrialFolder,
    round_done: OnRound | None = None,
    save_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> Record:
    """Return the stored result of a trial; run its missing rounds first.

    Save after a round if `save_seconds` have passed since the last checkpoint, because a checkpoint
    may take longer than a round. Wait if another process runs the same trial.
    """
    with folder.locked():
        stored = folder.result()
        return stored or _run(trial, data, folder, round_done, save_seconds, clock)


def _run(
    trial: Trial,
    data: LoadedData,
    folder: TrialFolder,
    round_done: OnRound | None,
    save_seconds: float,
    clock: Callable[[], float],
) -> Record:
    folder.describe(trial)
    recipe = trial.recipe
    shards, held_out = shards_of(trial, data), data.test(trial.test_images)
    fleet = LocalFleet(recipe, shards, held_out, compute_device=trial.compute_device)
    last = folder.saved()
    if last:
        fleet.restore(last.fleet)
    else:
        last = Saved(first_checkpoint(recipe), {}, [], 0.0)
    # One assignment changes all of it: a signal never interrupts halfway.
    progress = (last.checkpoint, last.rounds)
    seconds_before, started = last.seconds, clock()
    saved_at = started

    def now() -> Saved:
        """The state after the last completed round."""
        point, rounds = progress
        seconds = seconds_before + clock() - started
        return Saved(point, fleet.state(point.pool), rounds, seconds)

    error: str | None = None
    try:
        for done in federate(fleet, recipe, last.checkpoint):
            number = done.checkpoint.round_number
            health = fleet.health(number) if done.refreshed else {}
            record = _round_record(done, list(health.values()))
            progress = (done.checkpoint, [*progress[1], record])
            if round_done:
                round_done(number, recipe.rounds)
            if clock() - saved_at >= save_seconds:
                folder.save(now())
                saved_at = clock()
    except Diverged as failure:  # names the round, the device and the step
        error = str(failure)
    except Stopped:
        folder.save(now())
        raise
    result = {
        "status": "failed" if error else "done",
        "error": error,
        "preparation_rounds": recipe.method.preparation_rounds,
        "rounds": progress[1],
    }
    state = now()
    folder.finish(result, {**VERSIONS, "seconds": round(state.seconds, 3)}, state)
    return result


def shards_of(trial: Trial, data: LoadedData) -> dict[str, LabelledImages]:
    """Return the images of each device by its id."""
    if data.digest != trial.data_digest:
        raise ConfigurationError(
            f"data set {trial.data} has changed since the experiment was started; start it again"
        )
    shards = data.shards(trial.split, trial.seed)
    digits = len(str(len(shards) - 1))  # ids sort like numbers
    return {
        f"device-{number:0{digits}}": data.dataset.train.take(own)
        for number, own in enumerate(shards)
    }


def _round_record(done: RoundResult, health: list[SynthesisHealth]) -> Record:
    evaluation, pool = done.evaluation, done.checkpoint.pool
    record: Record = {
        "round": done.checkpoint.round_number,
        "accuracy": evaluation.accuracy if evaluation else None,
        "loss": _finite(evaluation.loss) if evaluation else None,
        "training_loss": _finite(done.training_loss),
    }
    if done.trouble:
        record["trouble"] = done.trouble
    if done.refreshed and pool:
        record["pool"] = {"samples": pool.samples, "leakage": asdict(pool.leakage)}
        if health:  # means over devices
            record["pool"]["health"] = {
                name: _finite(fmean(getattr(device, name) for device in health))
                for name in SynthesisHealth.__slots__
            }
    return record


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
