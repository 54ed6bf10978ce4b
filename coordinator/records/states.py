"""The states of runs, rounds and tasks, and the allowed transitions between them.

docs/rounds.md draws them, and a test compares the picture with these tables. Every change of a
state is part of one transaction and checks these tables. Any other transition is a bug.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from hfmds.domain.runs import RunState


class RoundState(enum.Enum):
    """What a round does. Operators see these names."""

    WAITING = "waiting for devices"
    SYNTHESISING = "synthesising"  # the synthesis phase is open
    SEALING = "sealing"  # it is closed; its pool is being sealed
    TRAINING = "training"  # the training phase is open
    AGGREGATING = "aggregating"  # it is closed; no further result counts in this round
    EVALUATING = "evaluating"  # the new model is durable
    COMPLETED = "completed"  # the round is recorded; it is the run's checkpoint


class TaskState(enum.Enum):
    """The life of a task."""

    ASSIGNED = "assigned"  # it waits for its device
    LEASED = "leased"  # the device has it
    ACCEPTED = "accepted"  # its result is durable, and counts
    FAILED = "failed"  # the device gave it up
    OVER = "over"  # the coordinator no longer wants its result; a LateReason says why


RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    RunState.RUNNING: frozenset({RunState.PAUSED, RunState.COMPLETED, RunState.CANCELLED}),
    # A paused run completes if its last round was being recorded when it was paused.
    RunState.PAUSED: frozenset({RunState.RUNNING, RunState.COMPLETED, RunState.CANCELLED}),
    RunState.COMPLETED: frozenset({RunState.DELETING}),
    RunState.CANCELLED: frozenset({RunState.DELETING}),
    RunState.DELETING: frozenset(),  # the end: its row is deleted
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
    # When the run is resumed: assigned again if the phase is open, else over.
    TaskState.FAILED: frozenset({TaskState.ASSIGNED, TaskState.OVER}),
    # When the run is resumed: a task of an open phase that was too slow.
    TaskState.OVER: frozenset({TaskState.ASSIGNED}),
}

PENDING = (TaskState.ASSIGNED, TaskState.LEASED)
"""The states in which the coordinator wants the result of a task."""
