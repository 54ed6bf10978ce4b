"""Where a run's loop begins, and the record of each round that it completes."""

from __future__ import annotations

from coordinator.records.runs import RunPosition, RunRecord
from coordinator.records.tasks import PhaseKey
from coordinator.runs.driver_records import DriverRecords
from coordinator.runs.learning import Learning
from coordinator.runs.models import Models
from hfmds.domain.digest import Digest
from hfmds.domain.learning import Checkpoint, RoundResult, Weights
from hfmds.domain.runs import Round
from hfmds.wire.tensors import StoredWeights, encode_weights


class Checkpoints:
    """Reads and writes the checkpoints of one run."""

    def __init__(
        self, run: RunRecord, records: DriverRecords, models: Models, learning: Learning
    ) -> None:
        self._run = run
        self._records = records
        self._models = models
        self._learning = learning

    def start(self) -> Checkpoint:
        """Return the last recorded checkpoint, or w^0."""
        last = self._records.runs.get(self._run.run_id).last_round
        if last is None:
            return self._first()
        weights = self._stored(last.weights, f"the model after round {last.number}")
        state: Weights = {}
        if last.server_state:
            what = f"the server's state after round {last.number}"
            state = self._stored(last.server_state, what)
        return Checkpoint(last.number, weights, last.pool, state)

    def record(self, result: RoundResult, now: float) -> tuple[Round, RunPosition]:
        """Record a round durably. Returns the round, and how far its run is."""
        run_id, t = self._run.run_id, result.checkpoint.round_number
        state = result.checkpoint.server_state
        began_at = self._records.phases.opened_at(
            PhaseKey(run_id, t, "synthesise" if result.refreshed else "train")
        )
        asynchronous = self._run.spec.policy.asynchronous is not None
        completed = Round(
            number=t,
            device_ids=result.cohort,
            weights=self._models.put(result.checkpoint.weights),
            training_loss=result.training_loss,
            evaluation=result.evaluation,
            refreshed=result.refreshed,
            pool=result.checkpoint.pool,
            traffic=result.traffic,
            duration_seconds=now - began_at,
            server_state=self._models.blobs.put_bytes(encode_weights(state)) if state else None,
            staleness=self._records.phases.staleness(run_id, t) if asynchronous else None,
            device_evaluation=result.device_evaluation,
        )
        return completed, self._records.runs.complete_round(run_id, completed, now)

    def _first(self) -> Checkpoint:
        if self._run.start is None:
            return self._learning.first_checkpoint(self._run.spec.recipe)
        return Checkpoint(0, self._stored(self._run.start, "the first model"))

    def _stored(self, digest: Digest, what: str) -> StoredWeights:
        return StoredWeights(self._models.blobs.local_path(digest), what)
