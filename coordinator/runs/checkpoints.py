"""Where a run begins and resumes, and the models that its completed rounds record.

A run that starts from another run's model copies it into its own content. So the other run may go
on, drop the model or be deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from coordinator.records.runs import RunPosition, RunRecord
from coordinator.records.tasks import PhaseKey
from coordinator.runs.content import Models, RunContents
from coordinator.runs.content_deletion import sweep
from coordinator.runs.evaluation import HeldOut, Learning
from coordinator.runs.run_control import DriverRecords
from hfmds.algorithm.models.weight_groups import classifier_of
from hfmds.domain.digest import Digest
from hfmds.domain.learning import Checkpoint, RoundResult, Weights
from hfmds.domain.recipe import Recipe
from hfmds.domain.runs import Round, RunSpec
from hfmds.errors import InvalidInput, NotFound
from hfmds.service.limits.open_files import OWN_FILES, open_files_allowed
from hfmds.wire.chunks import outgoing
from hfmds.wire.tensors import StoredWeights, encode_weights


class Checkpoints:
    """Reads and writes the checkpoints of one run, and deletes content that it no longer needs."""

    def __init__(
        self, run: RunRecord, records: DriverRecords, models: Models, learning: Learning
    ) -> None:
        self._run = run
        self._records = records
        self._models = models
        self._learning = learning

    def has_ended(self) -> bool:
        """Whether the run has ended, or is gone."""
        try:
            return self._records.runs.state(self._run.run_id).ended
        except NotFound:
            return True

    def last_and_best(self) -> tuple[Round, Round] | None:
        """Return the last recorded round and the best one so far; None before the first."""
        run = self._records.runs.get(self._run.run_id)
        if run.last_round is None:
            return None
        # If no round was evaluated, the best one is the last.
        return run.last_round, self._records.rounds.get(run.run_id, run.best_round)

    def start(self) -> Checkpoint:
        """Return the last recorded checkpoint, or w^0."""
        sweep(self._records, self._models.blobs, self._run.run_id)  # a kill may have prevented it
        last = self._records.runs.get(self._run.run_id).last_round
        if last is None:
            return self._first()
        weights = self._models.open(last.weights, f"the model after round {last.number}")
        state: Weights = {}
        if last.server_state:
            path = self._models.blobs.local_path(last.server_state)
            state = StoredWeights(path, f"the server's state after round {last.number}")
        return Checkpoint(last.number, weights, last.pool, state)

    def record(self, result: RoundResult, now: float) -> tuple[Round, RunPosition]:
        """Record a round durably. Returns the round, and how far its run is."""
        run_id, t = self._run.run_id, result.checkpoint.round_number
        state = result.checkpoint.server_state
        first = PhaseKey(run_id, t, "synthesise" if result.refreshed else "train")
        began_at = self._records.phases.get(first).opened_at
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
        position = self._records.runs.complete_round(run_id, completed, now)
        sweep(self._records, self._models.blobs, run_id)  # nobody deletes a run with a driver
        return completed, position

    def _first(self) -> Checkpoint:
        """Return w^0, or the model of another run that this run starts from."""
        if self._run.start is None:
            return self._learning.first_checkpoint(self._run.spec.recipe)
        return Checkpoint(0, self._models.open(self._run.start, "the first model"))


class RunModels:
    """Makes the first models of runs, and hands out recorded ones."""

    def __init__(self, records: DriverRecords, contents: RunContents, held_out: HeldOut) -> None:
        self._records = records
        self._contents = contents
        self._held_out = held_out

    def require_usable(self, spec: RunSpec) -> None:
        """Refuse a run whose models this coordinator could not store, average or evaluate."""
        self._require_size(spec.recipe)
        _require_open_files(spec.recipe.cohort_size)
        self._held_out.check(spec)

    def copy_first(self, run_id: str, spec: RunSpec) -> Digest | None:
        """Copy the model that a new run starts from, durably; None: it gets fresh weights.

        A run that exists has its copy, and the other run may be gone. So this copies nothing then.
        """
        start = spec.start_from
        if start is None or self._records.runs.exists(run_id):
            return None
        origin = self._records.runs.get(start.run_id).spec.recipe.model
        model = spec.recipe.model
        if origin != model:
            raise InvalidInput(
                f"{start} is of {origin}, but the recipe's model is {model}; "
                "give the recipe the same model, or start from another"
            )
        digest = self._records.retention.model(start.run_id, start.round_number)
        path = self._contents.of(start.run_id).blobs.local_path(digest)
        stored = StoredWeights(path, str(start))
        fresh = self._held_out.learning.first_checkpoint(spec.recipe).weights
        weights = _merged(fresh, stored, str(start))
        return self._contents.of(run_id).blobs.put_bytes(encode_weights(weights))

    async def download(
        self, run_id: str, round_number: int, offset: int = 0
    ) -> AsyncIterator[bytes]:
        """Yield the model after a round, in chunks."""
        find = self._records.retention.model
        model = await asyncio.to_thread(find, run_id, round_number)
        content = await asyncio.to_thread(self._contents.of, run_id)
        async for chunk in outgoing(content.blobs, model, offset):
            yield chunk

    def _require_size(self, recipe: Recipe) -> None:
        size_bytes = self._held_out.learning.weights_bytes(recipe)
        largest = self._contents.max_blob_bytes
        if size_bytes > largest:
            raise InvalidInput(
                f"the model, with what {recipe.method.name} learns besides it, would have "
                f"{size_bytes} bytes; HFMDS_MAX_BLOB_BYTES allows {largest}"
            )


def _require_open_files(cohort_size: int) -> None:
    """Refuse a cohort whose updates could not all be open at once, as averaging needs."""
    allowed = open_files_allowed() - OWN_FILES
    if cohort_size > allowed:
        raise InvalidInput(
            f"recipe.cohort_size is {cohort_size}, but this coordinator may have only {allowed} "
            "updates open at once; let it have more files (ulimit -Hn, LimitNOFILE=), or ask for "
            "fewer devices"
        )


def _merged(fresh: Weights, stored: StoredWeights, name_of_stored: str) -> Weights:
    """Return the stored weights, and fresh ones for the parts that only this run's method has."""
    shapes = stored.shapes()
    for name, values in fresh.items():
        if name not in shapes and name not in classifier_of(fresh):
            continue
        if shapes.get(name) != values.shape:
            raise InvalidInput(
                f"{name_of_stored} has {name!r} as {shapes.get(name, 'nothing')}, this run as "
                f"{values.shape}; give it the same model and settings of the method"
            )
    return {name: stored[name] if name in shapes else fresh[name] for name in fresh}
