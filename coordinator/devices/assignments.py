"""Finds work for devices: leases their tasks and describes them as assignments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from coordinator.devices.plans import Plans
from coordinator.monitoring import round_tracing
from coordinator.monitoring.metrics import Metrics
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.drain import DrainRecords
from coordinator.records.runs import RunRecords
from coordinator.records.tasks import Task
from coordinator.replicas.notices import Notices, Topic
from coordinator.runs.content import Recipes
from hfmds.algorithm.seeds import task_seed
from hfmds.domain.devices import DeviceProfile
from hfmds.domain.recipe import Recipe
from hfmds.domain.runs import RunState
from hfmds.domain.tasks import (
    Assignment,
    EvaluateWork,
    Finished,
    SynthesiseWork,
    TaskStage,
    TrainWork,
)
from hfmds.plans.format import plan_spec

_DRAINED = "the coordinator is drained: it hands out no new work"

Outcome: TypeAlias = Assignment | Finished | str | None
"""Work, or the end of it; or the reason to ask again later; None: the device waits for work."""


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """A device's request for work."""

    device_id: str
    profile: DeviceProfile
    run_id: str  # the only run that it works for; empty: any


class Assignments:
    """Describes a leased task to its device."""

    def __init__(self, recipes: Recipes, plans: Plans | None, notices: Notices) -> None:
        self._recipes = recipes
        self._plans = plans
        self._notices = notices

    def plan_ready(
        self, recipe: Recipe, profiles: Iterable[DeviceProfile], when_ready: Callable[[], None]
    ) -> bool:
        """Return whether these devices can have the recipe's plan now.

        If not, the coordinator makes the plan and then calls `when_ready`.
        """
        plans = self._plans
        if plans is None or not any(plans.needed(profile.engine) for profile in profiles):
            return True
        return plans.ready(plan_spec(recipe), when_ready)

    def of(self, task: Task, profile: DeviceProfile) -> Assignment | None:
        """Return the task's assignment, or None while its plan is being made."""
        key, recipe, plans = task.key, self._recipes.of(task.key.run_id, task.run_uid), self._plans

        def wake_device() -> None:
            self._notices.post(Topic.WORK, task.device_id)

        if not self.plan_ready(recipe, [profile], wake_device):
            return None
        return Assignment(
            task_id=task.task_id,
            run_id=key.run_id,
            run_uid=task.run_uid,
            round_number=key.round_number,
            lease_seconds=task.lease_seconds,
            # The learning rate of this round: devices do not know how it changes later.
            recipe=recipe.in_round(key.round_number),
            seed=task_seed(recipe.seed, key.kind, key.round_number, task.device_id),
            weights=task.weights,
            work=_work(task),
            plan=plans.of(plan_spec(recipe)) if plans and plans.needed(profile.engine) else None,
            traceparent=round_tracing.assign(task),
        )


class WorkFinder:
    """Answers requests for work; blocks."""

    def __init__(
        self,
        tasks: TaskRecords,
        runs: RunRecords,
        drain: DrainRecords,
        assignments: Assignments,
        metrics: Metrics,
    ) -> None:
        self._tasks = tasks
        self._runs = runs
        self._drain = drain
        self._assignments = assignments
        self._metrics = metrics

    def find(self, requests: Sequence[WorkRequest], now: float) -> list[Outcome | Exception]:
        """Answer each request, or return the error that concerns this request alone."""
        tasks = self._tasks.lease_each([(r.device_id, r.run_id) for r in requests], now)
        state_of = cache(self._runs.state)
        outcomes: list[Outcome | Exception] = []
        for request, task in zip(requests, tasks, strict=True):
            try:
                outcomes.append(self._outcome(request, task, state_of))
            except Exception as error:  # noqa: BLE001  # its device gets it
                outcomes.append(error)
        return outcomes

    def _outcome(
        self, request: WorkRequest, task: Task | None, state_of: Callable[[str], RunState]
    ) -> Outcome:
        if task is not None:
            self._metrics.funnel.reached(task.key.kind, task.stage, TaskStage.TAKEN)
            return self._assignments.of(task, request.profile)
        if request.run_id and (state := state_of(request.run_id)).ended:  # NotFound: no such run
            return Finished(f"run {request.run_id!r} is {state.value}")
        return _DRAINED if self._drain.is_on() else None


def _work(task: Task) -> TrainWork | SynthesiseWork | EvaluateWork:
    match task.key.kind:
        case "train":
            return TrainWork(task.reference or None)
        case "synthesise":
            return SynthesiseWork(task.reference)
        case "evaluate":
            return EvaluateWork()
