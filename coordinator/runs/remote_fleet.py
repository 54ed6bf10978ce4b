"""The fleet of real devices behind one run, as Algorithm 1 sees it (`hfmds.algorithm.federation`).

Lives in the run's driver thread, where blocking is fine. Every step is recorded before the next, so
after a restart the same calls find what was done and go on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from coordinator.records.phases import PhasePlan
from coordinator.records.runs import RunRecord
from coordinator.records.states import RoundState
from coordinator.records.tasks import PhaseKey, Task
from coordinator.runs.driver_records import DriverRecords
from coordinator.runs.held_out import HeldOut
from coordinator.runs.models import Models
from coordinator.runs.phase_conductor import PhaseConductor
from coordinator.runs.pool_store import PoolStore
from coordinator.runs.run_control import LOOK_AGAIN_SECONDS, RunControl
from coordinator.runs.selection import Selection
from hfmds.algorithm.aggregation.blocks import Moved
from hfmds.algorithm.aggregation.compression import unpacked
from hfmds.algorithm.device_evaluation import choose_evaluators, combine_evaluations
from hfmds.algorithm.sampling import Candidate
from hfmds.domain.digest import Digest
from hfmds.domain.learning import DeviceEvaluation, Evaluation, Pool, Traffic, Update, Weights
from hfmds.domain.pools import Contribution, PoolSpec
from hfmds.domain.runs import Phase, Progress
from hfmds.errors import HfmdsError, Unavailable
from hfmds.wire.conversions.records import (
    decode_evaluation_report,
    decode_synthesis_report,
    decode_update_report,
)
from hfmds.wire.tensors import StoredTensors, StoredWeights

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_STORE_RETRY_SECONDS = 1.0


class RemoteFleet:
    """A `Fleet` whose devices are behind the network."""

    def __init__(
        self,
        run: RunRecord,
        control: RunControl,
        records: DriverRecords,
        selection: Selection,
        conductor: PhaseConductor,
        store: PoolStore,
        models: Models,
        held_out: HeldOut,
    ) -> None:
        self._run_id = run.run_id
        self._pool_id = run.pool_id
        self._spec = run.spec
        self._control = control
        self._rounds = records.rounds
        self._phases = records.phases
        self._selection = selection
        self._conductor = conductor
        self._store = store
        self._models = models
        self._held_out = held_out
        self._clock = control.now
        self._candidates: Sequence[Candidate] = ()  # of the round that is about to train
        self._round_number = 0  # of the round that is to be evaluated

    # --- Fleet ----------------------------------------------------------------------------------

    def available(self, round_number: int) -> Sequence[Candidate]:
        """The devices that are there, once there are enough; on a replay, those recorded."""
        recorded = self._phases.find(PhaseKey(self._run_id, round_number, "train"))
        if recorded and recorded.tasks:
            devices = {task.device_id for task in recorded.tasks}
            return [Candidate(device_id, samples=1) for device_id in sorted(devices)]
        devices_here = self._enough_devices(round_number)
        self._candidates = self._selection.candidates(devices_here, self._clock())
        at_work = (Candidate(device_id, samples=1) for device_id in self._still_at_work())
        return list({c.device_id: c for c in (*at_work, *self._candidates)}.values())

    def synthesise(self, round_number: int, weights: Weights) -> Pool:
        digest = self._models.put(weights)
        pool_id, spec = self._pool_id(round_number), self._pool_spec(round_number, digest)
        self._rounds.begin(self._run_id, round_number, self._clock())
        in_use = self._phases.snapshots_in_use(self._run_id)  # none, but in asynchronous rounds
        self._selection.withdrawn = self._with_store(
            round_number, lambda: self._store.open_pool(pool_id, spec, in_use)
        )
        if spared := self._selection.withdrawn.intersection(self._selection.here()):
            log.info("withdrawn devices make no images", extra={"devices": len(spared)})
        key = PhaseKey(self._run_id, round_number, "synthesise")
        plan = PhasePlan(key, digest, pool_id, self._spec.policy)
        accepted = self._conductor.conduct(
            plan, lambda: self._enough_devices(round_number, "synthesise")
        )
        reports = {task.device_id: decode_synthesis_report(task.report) for task in accepted}
        contributions = [Contribution(device, r.batch) for device, r in reports.items()]
        self._control.show(Progress(round_number, Phase.SEALING, len(accepted), len(accepted)))
        snapshot, missing = self._with_store(
            round_number, lambda: self._store.seal_pool(pool_id, contributions)
        )
        for contribution in missing:
            log.warning(
                "device %s reported a batch that the store does not have", contribution.device_id
            )
        traffic = sum((report.traffic for report in reports.values()), Traffic())
        return Pool(snapshot.snapshot_id, snapshot.samples, snapshot.leakage, traffic)

    def train(
        self, round_number: int, weights: Weights, pool: Pool | None, cohort: Sequence[str]
    ) -> Sequence[Update]:
        mode = self._spec.policy.asynchronous
        plan = PhasePlan(
            PhaseKey(self._run_id, round_number, "train"),
            self._models.put(weights),
            pool.snapshot_id if pool else "",
            self._spec.policy,
            goal=mode.buffer_size if mode else self._spec.recipe.cohort_size,
        )

        def choose_devices() -> Sequence[str]:
            if mode:  # they join when it is open, as many as may work besides those at work
                return ()
            return (*cohort, *self._selection.spares(self._candidates, cohort, round_number))

        accepted = self._conductor.conduct(plan, choose_devices)
        self._control.show(Progress(round_number, Phase.AGGREGATING, len(accepted), len(accepted)))
        self._round_number = round_number
        # Each is read in pieces, when they are needed.
        began_at = cache(self._model)
        return tuple(
            self._moved(self._update(task, began_at(task.weights)), task, weights)
            for task in accepted
        )

    def evaluate(self, weights: Weights) -> Evaluation | None:
        self._models.put(weights)
        number = self._round_number
        self._rounds.enter(self._run_id, number, RoundState.EVALUATING, self._clock())
        self._control.show(Progress(number, Phase.EVALUATING, 0, 0))
        return self._held_out.evaluate(self._spec.recipe, weights)

    def evaluate_on_devices(self, round_number: int, weights: Weights) -> DeviceEvaluation | None:
        policy = self._spec.policy
        if not policy.evaluation.due(round_number, self._spec.recipe.rounds):
            return None
        key = PhaseKey(self._run_id, round_number, "evaluate")
        plan = PhasePlan(key, self._models.put(weights), "", policy)
        accepted = self._conductor.conduct(plan, lambda: self._evaluators(round_number))
        if len(accepted) < policy.least_evaluations:
            log.warning("too few devices evaluated the model", extra={"devices": len(accepted)})
            return None
        reports = [decode_evaluation_report(task.report) for task in accepted]
        found = combine_evaluations(report.evaluation for report in reports)
        traffic = sum((report.traffic for report in reports), Traffic())
        return replace(found, traffic=traffic) if found else None

    # --- parts ----------------------------------------------------------------------------------

    def _enough_devices(self, round_number: int, kind: str = "train") -> Sequence[str]:
        minimum = self._spec.policy.minimum_devices
        self._rounds.begin(self._run_id, round_number, self._clock())
        while True:
            self._control.wait_until_running()
            rings = self._control.bell.rings
            able = self._selection.able(kind)
            count = len({*able, *self._still_at_work()})
            if count < minimum:
                waits = Progress(round_number, Phase.WAITING_FOR_DEVICES, count, minimum)
            elif self._selection.plan_ready(able, self._control.bell.ring):
                return able
            else:
                waits = Progress(round_number, Phase.MAKING_PLAN, 0, 0)
            self._control.show(waits)
            self._control.bell.wait(rings, LOOK_AGAIN_SECONDS)

    def _evaluators(self, round_number: int) -> Sequence[str]:
        """Devices to evaluate the new model: as many as are there, when their time is over."""
        policy, evaluating = self._spec.policy, self._rounds.in_progress(self._run_id)
        since = evaluating.entered_at if evaluating else self._clock()
        while True:
            self._control.wait_until_running()
            rings = self._control.bell.rings
            there = len(self._selection.here())  # after a restart they are not back yet
            in_time = self._clock() < since + policy.deadline_seconds
            if there >= policy.least_evaluations or not in_time:
                able = self._selection.evaluators(policy.evaluation.devices, self._clock())
                return choose_evaluators(policy.evaluation, able, self._spec.recipe, round_number)
            self._control.bell.wait(rings, LOOK_AGAIN_SECONDS)

    def _still_at_work(self) -> set[str]:
        """Devices that go on from earlier rounds, as they do in asynchronous ones.

        After a restart they are known by nothing else.
        """
        if self._spec.policy.asynchronous is None:
            return set()
        return self._phases.at_work(self._run_id, self._clock())

    def _with_store(
        self, round_number: int, call: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result:
        """Call the store until it is there; what it refuses pauses the run."""
        told = False
        while True:
            self._control.wait_until_running()
            rings = self._control.bell.rings
            try:
                return self._control.call(call())
            except Unavailable as error:
                if not told:
                    log.warning("the run waits for the synthesis store: %s", error)
                    told = True
                self._control.show(Progress(round_number, Phase.WAITING_FOR_STORE, 0, 0))
                self._control.bell.wait(rings, _STORE_RETRY_SECONDS)
            except HfmdsError as error:
                self._control.pause(f"round {round_number}: the synthesis store refuses: {error}")

    def _model(self, weights: Digest) -> StoredWeights:
        return StoredWeights(self._models.blobs.local_path(weights), "the model")

    def _update(self, task: Task, began_at: Weights) -> Update:
        report = decode_update_report(task.report)
        path = self._models.blobs.local_path(report.update)
        packed = StoredTensors(path, f"the update of device {task.device_id!r}")
        weights = unpacked(self._spec.recipe, packed, began_at)
        return Update(task.device_id, weights, report.samples, report.loss, report.traffic)

    def _moved(self, update: Update, task: Task, today: Weights) -> Update:
        """The update as if its device had begun at the model of today, discounted by its age.

        Device k trained w_k from w^{t_k}; in round t it counts as w^t + (w_k - w^{t_k}) / (1 + s)^a
        with s = t - t_k, so that the mean over the buffer is FedBuff's step. What is measured and
        not learned stays as it is. In synchronous rounds nothing is stale.
        """
        mode, staleness = self._spec.policy.asynchronous, task.counted_round - task.key.round_number
        if mode is None or staleness == 0:
            return update
        began_at = self._model(task.weights)
        method = self._spec.recipe.method
        moved = Moved(
            update.weights,
            origin=began_at,
            to=today,
            factor=mode.weight(staleness),
            names=[name for name in update.weights if not method.measures(name)],
        )
        return replace(update, weights=moved)

    def _pool_spec(self, round_number: int, weights: Digest) -> PoolSpec:
        recipe = self._spec.recipe
        return PoolSpec(
            run_id=self._run_id,
            round_number=round_number,
            weights=weights,
            model=recipe.model,
            max_samples_per_device=recipe.method.samples_per_device,
            method=recipe.method.name,
            with_shares=recipe.method.with_shares,
            normalisation=recipe.normalisation,
            policy=recipe.pool,
        )
