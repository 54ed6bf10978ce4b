"""The places of rounds, phases and tasks in traces (`hfmds.service.monitoring.tracing`).

A round is a trace. Its spans are found by name, so each coordinator finds the phase of a task
without asking the coordinator that opened it. A round that continues after a crash is one trace.
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
"""The span names of phases. A phase with tasks has the name of their kind."""


def round_place(run_uid: str, number: int) -> SpanPlace:
    """Return the place of a round, the first span of its trace."""
    return SpanPlace(f"{run_uid}/{number}", _ROUND)


def phase_place(run_uid: str, number: int, span: str) -> SpanPlace:
    """Return the place of a phase in its round."""
    return SpanPlace(f"{run_uid}/{number}", span, parent=_ROUND)


def assign(task: Task) -> str:
    """Return the traceparent that a device gets with its task; empty without tracing."""
    if not tracing.is_on():
        return ""
    key = task.key
    phase = tracing.traceparent_of(phase_place(task.run_uid, key.round_number, key.kind))
    with tracing.span("assign", phase, run=key.run_id, round=key.round_number, task=task.task_id):
        return tracing.current()
