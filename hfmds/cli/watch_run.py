"""Follows running runs, across restarts of the coordinator. The display is elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from hfmds.domain.learning import Pool, Traffic
from hfmds.domain.runs import Round, Run, RunState
from hfmds.errors import Unavailable, WrongState
from hfmds.service.client.channel import Backoff
from hfmds.wire.clients.admin_client import AdminClient

_LAST_ROUNDS = 10  # for the mean time of a round: rounds with a refresh take longer
_BACKOFF = Backoff(first_seconds=0.25, max_seconds=5.0)


@dataclass(slots=True)
class FollowedRun:
    """A run with all rounds that have arrived."""

    label: str
    run: Run
    rounds: list[Round] = field(default_factory=list)
    away: str = ""  # why the coordinator does not answer now

    @property
    def accuracies(self) -> list[float]:
        """The accuracy of each evaluated round, in [0, 1]."""
        return [done.accuracy for done in self.rounds if done.accuracy is not None]

    def best(self, up_to: int | None = None) -> Round | None:
        """Return the best round up to a number; the first of equal ones."""
        rounds = (done for done in self.rounds if up_to is None or done.number <= up_to)
        measured = [done for done in rounds if done.accuracy is not None]
        return max(measured, key=lambda done: done.accuracy or 0.0, default=None)

    @property
    def round_seconds(self) -> float | None:
        """The mean time of the last rounds; None before the first."""
        last = [done.duration_seconds for done in self.rounds[-_LAST_ROUNDS:]]
        return sum(last) / len(last) if last else None

    @property
    def seconds_left(self) -> float | None:
        """The estimated time until the last round; None if it is unknown."""
        if self.round_seconds is None or self.run.state is not RunState.RUNNING:
            return None
        return self.round_seconds * (self.run.spec.recipe.rounds - self.rounds[-1].number)

    @property
    def pool(self) -> Pool | None:
        """The pool of the last completed round."""
        return self.rounds[-1].pool if self.rounds else None

    @property
    def traffic(self) -> Traffic:
        """The traffic of all completed rounds."""
        return sum((done.traffic for done in self.rounds), Traffic())

    @property
    def at_its_end(self) -> bool:
        """Whether the run has ended and all its rounds have arrived."""
        return self.run.state.ended and len(self.rounds) >= self.run.completed_rounds

    def require_completed(self) -> None:
        """Raise WrongState unless the run is completed."""
        if self.run.state is not RunState.COMPLETED:
            raise WrongState(f"run {self.run.run_id} was {self.run.state.value}")

    def require_not_stuck(self) -> None:
        """Raise WrongState if the coordinator has paused the run: it waits for an operator."""
        if self.run.state is RunState.PAUSED and self.run.state_reason:
            raise WrongState(
                f"run {self.run.run_id} ({self.label}) was paused: {self.run.state_reason}"
            )


async def follow(client: AdminClient, followed: FollowedRun) -> AsyncIterator[Sequence[Round]]:
    """Keep `followed` up to date until its run ends; yield the new rounds at every change.

    If the coordinator goes away, ask again from the last round that arrived, until it is back.
    """
    failures = 0
    while not followed.at_its_end:
        after = followed.rounds[-1].number if followed.rounds else 0
        try:
            async for run, rounds in client.watch_run(followed.run.run_id, after):
                failures = 0
                followed.run, followed.away = run, ""
                followed.rounds.extend(rounds)
                yield rounds
            reason = "the coordinator ended the stream"  # as after an orderly stop
        except Unavailable as error:
            reason = str(error)
        if not followed.at_its_end:
            failures += 1
            followed.away = reason
            yield ()
            await asyncio.sleep(_BACKOFF.ceiling(failures))
