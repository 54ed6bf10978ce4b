"""The states of runs, rounds and tasks, and the only ways from one to the next.

docs/rounds.md draws them; a test holds the picture to these tables. Whoever changes a state does it
in one transaction, and by these tables: a step that is not in them is a bug, and is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from hfmds.domain.runs import RunState


class RoundState(enum.Enum):
    """What a round is doing. The names are those that operators see."""

    WAITING = "waiting for devices"
    SYNTHESISING = "synthesising"  # the synthesis phase is open
    SEALING = "sealing"  # it is closed; its pool is being sealed
    TRAINING = "training"  # the training phase is open
    AGGREGATING = "aggregating"  # it is closed; no further result counts in this round
    EVALUATING = "evaluating"  # the new model is durable
    COMPLETED = "completed"  # the round is recorded; it is the run's checkpoint


class TaskState(enum.Enum):
    """Where a task is in its life."""

    ASSIGNED = "assigned"  # waits for its device
    LEASED = "leased"  # the device has it
    ACCEPTED = "accepted"  # its result is durable, and counts
    FAILED = "failed"  # the device gave it up
    OVER = "over"  # nobody wants its result any more; a LateReason says why


RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    RunState.RUNNING: frozenset({RunState.PAUSED, RunState.COMPLETED, RunState.CANCELLED}),
    # A paused run completes if its last round was being recorded when it was paused.
    RunState.PAUSED: frozenset({RunState.RUNNING, RunState.COMPLETED, RunState.CANCELLED}),
    RunState.COMPLETED: frozenset({RunState.DELETING}),
    RunState.CANCELLED: frozenset({RunState.DELETING}),
    RunState.DELETING: frozenset(),  # then it is gone
}

ROUND_TRANSITIONS: Mapping[RoundState, frozenset[RoundState]] = {
    RoundState.WAITING: frozenset({RoundState.SYNTHESISING, RoundState.TRAINING}),
    RoundState.SYNTHESISING: frozenset({RoundState.SEALING}),
    RoundState.SEALING: frozenset({RoundState.TRAINING}),
    RoundState.TRAINING: frozenset({RoundState.AGGREGATING}),
    RoundState.AGGREGATING: frozenset({RoundState.EVALUATING}),
    RoundState.EVALUATING: frozenset({RoundState.COMPLETED}),
    RoundState.COMPLETED: frozenset(),
}

TASK_TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.ASSIGNED: frozenset({TaskState.LEASED, TaskState.OVER}),
    TaskState.LEASED: frozenset({TaskState.ACCEPTED, TaskState.FAILED, TaskState.OVER}),
    TaskState.ACCEPTED: frozenset(),
    # When its run is resumed: a second chance if its phase is open, else no longer held against it.
    TaskState.FAILED: frozenset({TaskState.ASSIGNED, TaskState.OVER}),
    # Also a second chance, for a task that was too slow in a phase that is open.
    TaskState.OVER: frozenset({TaskState.ASSIGNED}),
}

PENDING = (TaskState.ASSIGNED, TaskState.LEASED)
"""The states of a task whose result is still wanted."""
