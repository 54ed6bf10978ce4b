"""One worker process: runs one trial after the other and reports its progress.

It has one torch thread. A second one gains little for small batches, and with one thread the
numbers do not depend on the number of workers.
"""

from __future__ import annotations

import contextlib
import signal
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from hfmds.errors import HfmdsError
from hfmds.experiments.trials.loaded_data import DataShelf
from hfmds.experiments.trials.running import Stopped, run_trial
from hfmds.experiments.trials.trial import Trial
from hfmds.experiments.trials.trial_folder import TrialFolder

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The settings that all trials of a worker share."""

    results: Path
    data_root: Path
    save_seconds: float


@dataclass(frozen=True, slots=True)
class RoundDone:
    """A trial has completed a round."""

    trial_id: str
    done: int


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A trial has ended; `error` is the reason if it diverged."""

    trial_id: str
    error: str | None


@dataclass(frozen=True, slots=True)
class TrialBroke:
    """A trial could not be run and has no result."""

    trial_id: str
    reason: str


Event = RoundDone | TrialEnded | TrialBroke


def work(orders: Connection, setup: WorkerSetup) -> None:
    """Take trials from the connection until it closes or this process must stop."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes; the parent stops the workers
    raise_stopped_once()
    with contextlib.suppress(Stopped, EOFError, BrokenPipeError, ConnectionResetError):
        import torch

        torch.set_num_threads(1)
        shelf = DataShelf(setup.data_root)
        while True:
            orders.send(_run(orders.recv(), shelf, setup, orders))


def _run(trial: Trial, shelf: DataShelf, setup: WorkerSetup, tell: Connection) -> Event:
    trial_id = trial.trial_id

    def round_done(done: int, of: int) -> None:
        try:
            tell.send(RoundDone(trial_id, done))
        except OSError:  # the parent was killed
            raise Stopped from None

    folder = TrialFolder(setup.results, trial_id)
    try:
        result = run_trial(trial, shelf.get(trial.data), folder, round_done, setup.save_seconds)
    except (HfmdsError, OSError) as error:  # such as: no space left on device
        return TrialBroke(trial_id, str(error))
    except Exception:  # noqa: BLE001 (onnxruntime has no better one)
        return TrialBroke(trial_id, traceback.format_exc())
    return TrialEnded(trial_id, result["error"])


def raise_stopped_once() -> None:
    """Let the first SIGTERM or SIGHUP raise `Stopped`.

    A signal to the process group arrives twice: from the sender and from the parent. The second
    one must not interrupt the saving.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for heeded in _STOP_SIGNALS:
            signal.signal(heeded, signal.SIG_IGN)
        raise Stopped

    for heeded in _STOP_SIGNALS:
        signal.signal(heeded, stop)
