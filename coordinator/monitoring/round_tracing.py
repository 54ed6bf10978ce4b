"""Where rounds, phases and tasks stand in traces (`hfmds.service.monitoring.tracing`).

A round is a trace. Its spans have names, so every coordinator finds the phase that a task is of
without asking the one that opened it, and a round that is replayed after a crash is the same trace.
"""

from __future__ import annotations

from coordinator.records.tasks import Task
from hfmds.domain.runs import Phase
from hfmds.service.monitoring import tracing
from hfmds.service.monitoring.tracing import SpanPlace

_ROUND = "round"

SPANS = {
    Phase.WAITING_FOR_DEVICES: "wait for devices",
    Phase.SYNTHESISING: "synthesise",
    Phase.SEALING: "seal",
    Phase.TRAINING: "train",
    Phase.AGGREGATING: "aggregate",
    Phase.EVALUATING: "evaluate",
    Phase.WAITING_FOR_STORE: "wait for store",
    Phase.DRAINED: "drained",
    Phase.MAKING_PLAN: "make plan",
}
"""What the span of a phase is called; those that have tasks as the kind of these."""


def round_place(run_uid: str, number: int) -> SpanPlace:
    """A round, the first span of its trace."""
    return SpanPlace(f"{run_uid}/{number}", _ROUND)


def phase_place(run_uid: str, number: int, span: str) -> SpanPlace:
    """A phase of a round."""
    return SpanPlace(f"{run_uid}/{number}", span, parent=_ROUND)


def assign(task: Task) -> str:
    """The traceparent that a device gets with its task; empty: nobody traces."""
    if not tracing.is_on():
        return ""
    key = task.key
    phase = tracing.traceparent_of(phase_place(task.run_uid, key.round_number, key.kind))
    with tracing.span("assign", phase, run=key.run_id, round=key.round_number, task=task.task_id):
        return tracing.current()
