"""One worker process: runs one trial after the other and reports its progress.

The pool starts this module as a program: `python -m hfmds.experiments.trials.worker FD`, where FD
is the worker's end of their connection. The worker has one torch thread. A second one gains little
for small batches, and with one thread the numbers do not depend on the number of workers.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from types import FrameType

from hfmds.errors import HfmdsError
from hfmds.experiments.trials.loaded_data import DataShelf
from hfmds.experiments.trials.running import Stopped, run_trial
from hfmds.experiments.trials.trial import Trial
from hfmds.experiments.trials.trial_folder import TrialFolder
from hfmds.experiments.trials.worker_messages import (
    Event,
    RoundDone,
    TrialBroke,
    TrialEnded,
    WorkerSetup,
)


def main() -> None:
    """Take trials from the connection until it closes or this process must stop."""
    pool = Connection(int(sys.argv[1]))
    with contextlib.suppress(Stopped, EOFError, BrokenPipeError, ConnectionResetError):
        raise_stopped_once()
        import torch

        torch.set_num_threads(1)
        setup: WorkerSetup = pool.recv()
        shelf = DataShelf(setup.data_root)
        while True:
            pool.send(_run(pool.recv(), shelf, setup, pool))


def _run(trial: Trial, shelf: DataShelf, setup: WorkerSetup, pool: Connection) -> Event:
    trial_id = trial.trial_id

    def round_done(done: int, of: int) -> None:
        try:
            pool.send(RoundDone(trial_id, done))
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
    """Let the first SIGTERM raise `Stopped`.

    Where an operator stops all processes of a job, the pool sends a second one. That one must not
    interrupt the saving.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    signal.signal(signal.SIGTERM, stop)


if __name__ == "__main__":
    main()
