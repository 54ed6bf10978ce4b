"""Checks devices' updates against the form that the task's model and method give them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache

from coordinator.monitoring.log_fields import task_context
from coordinator.monitoring.metrics import Metrics
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.tasks import PhaseKey, Task
from coordinator.runs.content import Recipes, RunContents
from hfmds.algorithm.aggregation.compression import TensorForm, packed_form, unpacked
from hfmds.domain.digest import Digest
from hfmds.domain.tasks import TaskStage
from hfmds.errors import InvalidInput, LimitExceeded
from hfmds.wire.tensors import StoredTensors, StoredWeights, require_finite_weights

log = logging.getLogger(__name__)

_CACHED_PHASES = 256
_HEADER_SLACK_BYTES = 1 << 20  # a safetensors header of another writer may be this much longer


class UpdateCheck:
    """Refuses updates that the task does not want; blocks. Thread-safe."""

    def __init__(
        self,
        recipes: Recipes,
        contents: RunContents,
        tasks: TaskRecords,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._recipes = recipes
        self._contents = contents
        self._tasks = tasks
        self._metrics = metrics
        self._clock = clock
        self._form_of_phase = lru_cache(_CACHED_PHASES)(self._read_form)

    def require_size(self, task: Task, update: Digest) -> None:
        """Raise LimitExceeded if the update is larger than its task's model allows."""
        size_bytes = sum(form.size_bytes for form in self._form(task).values())
        max_bytes = size_bytes + _HEADER_SLACK_BYTES
        if update.size_bytes > max_bytes:
            self._refuse(task, "too large")
            raise LimitExceeded(
                f"the update for task {task.task_id!r} has {update.size_bytes} bytes: the tensors "
                f"it trains have {size_bytes}, so at most {max_bytes} are accepted"
            )

    def require_sound(self, task: Task, update: Digest) -> None:
        """Raise InvalidInput if a complete update is not as its task wants it."""
        path = self._contents.of(task.key.run_id).blobs.local_path(update)
        recipe, what = self._recipes.of(task.key.run_id, task.run_uid), f"update {update}"
        flaw = "malformed"
        try:
            tensors = StoredTensors(path, what)
            tensors.require_form(self._form(task), what)
            flaw = "not finite"
            # Finite scales and changes can still lead to weights that are not finite.
            weights = unpacked(recipe, tensors, self._open_model(task.key.run_id, task.weights))
            require_finite_weights(weights, what)
            flaw = "unusable"
            recipe.method.check_update(weights, what)
        except InvalidInput as error:
            with task_context(task):
                log.warning("update refused: %s", error)
            self._refuse(task, flaw)
            raise

    def _refuse(self, task: Task, flaw: str) -> None:
        self._metrics.update_refused(flaw)
        before = self._tasks.refuse(task.device_id, task.task_id, flaw, self._clock())
        self._metrics.funnel.reached(task.key.kind, before.stage, TaskStage.UPLOADED)

    def _form(self, task: Task) -> dict[str, TensorForm]:
        return self._form_of_phase(task.key, task.run_uid, task.weights)

    def _read_form(self, key: PhaseKey, run_uid: str, weights: Digest) -> dict[str, TensorForm]:
        """Return the tensors of every sound update of a phase."""
        recipe = self._recipes.of(key.run_id, run_uid)
        shapes = self._open_model(key.run_id, weights).shapes()
        trained = [name for name in shapes if recipe.method.trains(name, key.round_number)]
        return packed_form(recipe, {name: shapes[name] for name in trained})

    def _open_model(self, run_id: str, weights: Digest) -> StoredWeights:
        path = self._contents.of(run_id).blobs.local_path(weights)
        return StoredWeights(path, f"model {weights}")
