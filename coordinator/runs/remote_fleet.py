"""The fleet of real devices behind one run, as Algorithm 1 sees it (`hfmds.algorithm.federation`).

The fleet lives in its run's driver thread, so it may block. It remembers nothing between calls:
every step is recorded before the next. After a restart the same calls find the recorded steps and
go on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from coordinator.records.phases import PhaseSpec
from coordinator.records.runs import RunRecord
from coordinator.records.tasks import PhaseKey, Task
from coordinator.runs.content import Models
from coordinator.runs.evaluation import HeldOut
from coordinator.runs.phase_conductor import PhaseConductor
from coordinator.runs.pool_refresh import PoolRefresh
from hfmds.algorithm.aggregation.blocks import Moved
from hfmds.algorithm.aggregation.compression import unpacked
from hfmds.algorithm.evaluation import combine_evaluations
from hfmds.domain.digest import Digest
from hfmds.domain.learning import DeviceEvaluation, Evaluation, Pool, Traffic, Update, Weights
from hfmds.domain.pools import Contribution
from hfmds.wire.conversions.records import (
    decode_evaluation_report,
    decode_synthesis_report,
    decode_update_report,
)
from hfmds.wire.tensors import StoredTensors, StoredWeights

log = logging.getLogger(__name__)


class RemoteFleet:
    """A `Fleet` whose devices are behind the network."""

    def __init__(
        self,
        run: RunRecord,
        conductor: PhaseConductor,
        refresh: PoolRefresh,
        models: Models,
        held_out: HeldOut,
    ) -> None:
        self._run = run
        self._spec = run.spec
        self._conductor = conductor
        self._refresh = refresh
        self._models = models
        self._held_out = held_out

    # --- Fleet ----------------------------------------------------------------------------------

    def synthesise(self, round_number: int, weights: Weights) -> Pool:
        digest = self._models.put(weights)
        withdrawn = self._refresh.open(round_number, digest)
        if withdrawn:
            log.info("withdrawn devices make no images", extra={"devices": len(withdrawn)})
        results = self._conductor.conduct(
            PhaseSpec(
                PhaseKey(self._run.run_id, round_number, "synthesise"),
                digest,
                self._run.pool_id(round_number),
                self._spec.policy,
                excluded=withdrawn,
            )
        )
        reports = {task.device_id: decode_synthesis_report(task.report) for task in results}
        contributions = [Contribution(device, r.batch) for device, r in reports.items()]
        snapshot = self._refresh.seal(round_number, contributions)
        traffic = sum((report.traffic for report in reports.values()), Traffic())
        return Pool(snapshot.snapshot_id, snapshot.samples, snapshot.leakage, traffic)

    def train(self, round_number: int, weights: Weights, pool: Pool | None) -> Sequence[Update]:
        mode = self._spec.policy.asynchronous
        results = self._conductor.conduct(
            PhaseSpec(
                PhaseKey(self._run.run_id, round_number, "train"),
                self._models.put(weights),
                pool.snapshot_id if pool else "",
                self._spec.policy,
                goal=mode.buffer_size if mode else self._spec.recipe.cohort_size,
            )
        )
        model = cache(self._model)
        # Aggregation reads each update in pieces, when it needs them.
        return tuple(
            self._moved(self._update(task, model(task.weights)), task, weights) for task in results
        )

    def evaluate(self, round_number: int, weights: Weights) -> Evaluation | None:
        self._conductor.begin_evaluation(round_number)
        return self._held_out.evaluate(self._spec.recipe, weights)

    def evaluate_on_devices(self, round_number: int, weights: Weights) -> DeviceEvaluation | None:
        policy = self._spec.policy
        if not policy.evaluation.due(round_number, self._spec.recipe.rounds):
            return None
        key = PhaseKey(self._run.run_id, round_number, "evaluate")
        results = self._conductor.conduct(PhaseSpec(key, self._models.put(weights), "", policy))
        if len(results) < policy.least_evaluations:
            log.warning("too few devices evaluated the model", extra={"devices": len(results)})
            return None
        reports = [decode_evaluation_report(task.report) for task in results]
        evaluation = combine_evaluations(report.evaluation for report in reports)
        traffic = sum((report.traffic for report in reports), Traffic())
        return replace(evaluation, traffic=traffic) if evaluation else None

    # --- updates --------------------------------------------------------------------------------

    def _model(self, weights: Digest) -> StoredWeights:
        return StoredWeights(self._models.blobs.local_path(weights), "the model")

    def _update(self, task: Task, began_at: Weights) -> Update:
        """Open the update of a task that began at this model."""
        report = decode_update_report(task.report)
        path = self._models.blobs.local_path(report.update)
        packed = StoredTensors(path, f"the update of device {task.device_id!r}")
        weights = unpacked(self._spec.recipe, packed, began_at)
        return Update(task.device_id, weights, report.samples, report.loss, report.traffic)

    def _moved(self, update: Update, task: Task, today: Weights) -> Update:
        """Move a stale update as if its device had begun at today's model, and discount its age.

        Device k trained w_k from w^{t_k}; in round t it counts as w^t + (w_k - w^{t_k}) / (1 + s)^a
        with s = t - t_k, so that the mean over the buffer is FedBuff's step. Values that are
        measured and not learned stay. In synchronous rounds no update is stale.
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
