"""Counts the results that devices hand in: those that come at about the same time, together.

One by one, each would take a thread, a transaction, and the interpreter from the others. What is to
be looked at before is each device's own affair, and nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coordinator.devices.batching import Together
from coordinator.devices.lru import Memory
from coordinator.devices.uploads import Updates
from coordinator.records.acceptance import Acceptance, HandedIn
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.states import TaskState
from coordinator.records.tasks import Task
from coordinator.runs.content import RunContents
from hfmds.domain.digest import Digest
from hfmds.domain.methods import TaskKind
from hfmds.domain.tasks import EvaluationReport, SynthesisReport, UpdateReport
from hfmds.errors import Unavailable, WrongState
from hfmds.wire.conversions.records import encode_report

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 64  # in a transaction, for which others that write have to wait

Report: TypeAlias = UpdateReport | SynthesisReport | EvaluationReport


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a device hands in, for a task of this kind."""

    device_id: str
    task_id: str
    kind: TaskKind
    result: Digest
    report: Report


Accepted: TypeAlias = Callable[[Task, Submitted, Acceptance], None]
"""Hears of each result when it is counted; in any thread, and it must be quick."""

_Wanted: TypeAlias = tuple[Task, Submitted]


class Results:
    """Accepts them. Lives on the event loop."""

    def __init__(
        self,
        tasks: TaskRecords,
        updates: Updates,
        contents: RunContents,
        handed_out: Memory[Task],
        clock: Callable[[], float],
        accepted: Accepted,
    ) -> None:
        """`handed_out` has tasks as they were when their devices got them, by device and id."""
        self._tasks = tasks
        self._updates = updates
        self._contents = contents
        self._handed_out = handed_out
        self._clock = clock
        self._accepted = accepted
        self._wanted = Together[_Wanted, Acceptance](self._accept_all, _MOST_AT_ONCE)

    async def accept(self, submitted: Submitted) -> Acceptance:
        """Count a result, once; on return that is durable."""
        task = self._remembered(submitted)
        if task is None:
            task = await asyncio.to_thread(self._task, submitted)
        return await self._wanted.ask((task, submitted))

    def answerable(self, device_id: str, task_id: str, kind: TaskKind) -> Task:
        """The device's task, if it is of this kind and its answer is wanted or known; blocks."""
        task = self._tasks.get_pending(device_id, task_id)
        if task.key.kind != kind:
            raise WrongState(f"task {task_id!r} is to {task.key.kind}, not to {kind}")
        return task

    def _remembered(self, submitted: Submitted) -> Task | None:
        """The task, if memory knows all that is to be known before its result is counted.

        Whether it is over by now shows then.
        """
        task = self._handed_out.get((submitted.device_id, submitted.task_id))
        if task is None or task.key.kind != submitted.kind:
            return None
        is_sound = submitted.kind != "train" or self._updates.is_sound(task, submitted.result)
        return task if is_sound else None

    def _task(self, submitted: Submitted) -> Task:
        """The task that something was submitted for, which is nothing that it does not want."""
        task = self.answerable(submitted.device_id, submitted.task_id, submitted.kind)
        # Of a counted update the bytes may be gone.
        if submitted.kind == "train" and task.state is not TaskState.ACCEPTED:
            self._updates.require_sound(task, submitted.result)
        return task

    def _accept_all(self, wanted: Sequence[_Wanted]) -> Sequence[Acceptance | Exception]:
        outcomes = self._counted([self._handed_in(*each) for each in wanted])
        # Here, not where it is waited for: whoever waits may have gone, and it counts all the same.
        for (task, submitted), outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, Acceptance):
                self._accepted(task, submitted, outcome)
        return outcomes

    def _counted(self, results: Sequence[HandedIn]) -> Sequence[Acceptance | Exception]:
        """All in one transaction; if one of them breaks that, each in its own."""
        try:
            return self._tasks.accept_each(results, self._clock())
        except Unavailable:
            raise
        except Exception as error:  # whoever waits for it gets it
            if len(results) == 1:
                return [error]
            log.exception("%d results could not be counted together", len(results))
        return [self._counted([result])[0] for result in results]

    def _handed_in(self, task: Task, submitted: Submitted) -> HandedIn:
        def is_here() -> bool:
            blobs = self._contents.of(task.key.run_id).blobs
            return submitted.kind != "train" or blobs.contains(submitted.result)

        report = encode_report(submitted.report)
        return HandedIn(submitted.device_id, submitted.task_id, submitted.result, report, is_here)
