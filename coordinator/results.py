"""Counts the results that devices hand in: those that come at about the same time, together.

One by one, each would take a thread, a transaction, and the interpreter from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coordinator.content import RunContents
from coordinator.memory import Memory
from coordinator.states import TaskState
from coordinator.task_records import Acceptance, HandedIn, TaskRecords
from coordinator.task_rows import Task
from coordinator.together import Together
from coordinator.updates import Updates
from hfmds.algorithm.seeds import Phase as Kind
from hfmds.digest import Digest
from hfmds.errors import WrongState

_MOST_AT_ONCE = 64  # in a transaction, for which others that write have to wait

_Outcome: TypeAlias = tuple[Task, Acceptance]


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a device hands in, for a task of this kind."""

    device_id: str
    task_id: str
    kind: Kind
    result: Digest
    report: bytes


class Results:
    """Accepts them. Lives on the event loop."""

    def __init__(
        self,
        tasks: TaskRecords,
        updates: Updates,
        contents: RunContents,
        handed_out: Memory[Task],
        clock: Callable[[], float],
    ) -> None:
        """`handed_out` has tasks as they were when their devices got them, by device and id."""
        self._tasks = tasks
        self._updates = updates
        self._contents = contents
        self._handed_out = handed_out
        self._clock = clock
        self._submitted = Together[Submitted, _Outcome](self._accept_all, _MOST_AT_ONCE)

    async def accept(self, submitted: Submitted) -> tuple[Task, Acceptance]:
        """Count a result, once; on return that is durable. With the task it is of."""
        return await self._submitted.ask(submitted)

    def answerable(self, device_id: str, task_id: str, kind: Kind) -> Task:
        """The device's task, if it is of this kind and its answer is wanted or known; blocks."""
        task = self._tasks.get_pending(device_id, task_id)
        if task.key.kind != kind:
            raise WrongState(f"task {task_id!r} is to {task.key.kind}, not to {kind}")
        return task

    def _accept_all(self, submitted: Sequence[Submitted]) -> list[_Outcome | Exception]:
        outcomes: dict[Submitted, _Outcome | Exception] = {}
        tasks: dict[Submitted, Task] = {}
        for each in submitted:
            try:
                tasks[each] = self._task(each)
            except Exception as error:  # noqa: BLE001  # it is this device's alone
                outcomes[each] = error
        handed_in = [self._handed_in(task, each) for each, task in tasks.items()]
        found = self._tasks.accept_each(handed_in, self._clock()) if handed_in else []
        for (each, task), outcome in zip(tasks.items(), found, strict=True):
            outcomes[each] = (task, outcome) if isinstance(outcome, Acceptance) else outcome
        return [outcomes[each] for each in submitted]

    def _task(self, submitted: Submitted) -> Task:
        """The task that something was submitted for, which is nothing that it does not want."""
        device_id, task_id, kind = submitted.device_id, submitted.task_id, submitted.kind
        task = self._handed_out.get((device_id, task_id))
        if task and task.key.kind == kind and self._is_sound(task, submitted.result):
            return task  # whether it is over by now shows when the result is to be counted
        task = self.answerable(device_id, task_id, kind)
        # Of a counted update the bytes may be gone.
        if kind == "train" and task.state is not TaskState.ACCEPTED:
            self._updates.require_sound(task, submitted.result)
        return task

    def _is_sound(self, task: Task, result: Digest) -> bool:
        return task.key.kind != "train" or self._updates.is_sound(task, result)

    def _handed_in(self, task: Task, submitted: Submitted) -> HandedIn:
        def is_here() -> bool:
            blobs = self._contents.of(task.key.run_id).blobs
            return submitted.kind != "train" or blobs.contains(submitted.result)

        return HandedIn(
            submitted.device_id, submitted.task_id, submitted.result, submitted.report, is_here
        )
