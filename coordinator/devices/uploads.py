"""Takes the bytes of devices' updates, and says whether they are what was asked for.

An update is looked at as soon as it is here, in the thread that has written it, and what is found
to be sound is not looked at again when it is handed in. Of what is not, the device hears then.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import lru_cache

from coordinator.devices.lru import Memory
from coordinator.devices.upload_quota import UploadQuota
from coordinator.monitoring.log_fields import task_context
from coordinator.monitoring.metrics import Metrics
from coordinator.records.acceptance import not_uploaded
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.states import TaskState
from coordinator.records.tasks import PhaseKey, Task
from coordinator.runs.content import RunContents
from coordinator.runs.recipes import Recipes
from hfmds.algorithm.aggregation.compression import TensorForm, packed_form, unpacked
from hfmds.domain.digest import Digest
from hfmds.domain.tasks import UploadState
from hfmds.errors import InvalidInput, LimitExceeded
from hfmds.wire.chunks import Content, receive, upload_state
from hfmds.wire.tensors import StoredTensors, StoredWeights, require_finite_weights

log = logging.getLogger(__name__)

_REMEMBERED_PHASES = 256
_REMEMBERED_MODELS = 4
_REMEMBERED_UPDATES = 4096
# safetensors' header may be laid out otherwise than ours, but not by more than this.
_HEADER_SLACK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What was found when an update was looked at."""

    flaw: str = ""  # a word for what is wrong; none: nothing is
    message: str = ""

    @property
    def is_sound(self) -> bool:
        return not self.flaw


class _Counted(Exception):  # no error: it is caught where it is raised for
    """The task's update counts already."""


class Updates:
    """What devices send for their tasks to train. Thread-safe."""

    def __init__(
        self,
        tasks: TaskRecords,
        recipes: Recipes,
        contents: RunContents,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._tasks = tasks
        self._recipes = recipes
        self._contents = contents
        self._metrics = metrics
        self._clock = clock
        self._quota = UploadQuota()
        # Each call of a device needs one of these, and neither ever changes.
        self._forms = lru_cache(_REMEMBERED_PHASES)(self._read_form)
        self._models = lru_cache(_REMEMBERED_MODELS)(self._read_model)
        self._verdicts = Memory[_Verdict](_REMEMBERED_UPDATES)  # by phase and digest

    def state(self, task: Task, update: Digest) -> UploadState:
        """Where the upload of a task's update stands; blocks."""
        if task.state is TaskState.ACCEPTED:  # its bytes may be gone, with its round
            return UploadState(update.size_bytes, complete=True)
        return upload_state(self._place(task, update), task.task_id, update)

    async def take(
        self,
        wanted: Callable[[], Task],
        task_id: str,
        update: Digest,
        offset: int,
        chunks: AsyncIterator[bytes | memoryview],
    ) -> bool:
        """Take the bytes of an update; true if they were here before, or the task needs no more.

        `wanted` is the task, or raises if nothing is wanted of it. It is called in a thread, as is
        all that touches the disk: in one trip, unless there are many bytes.
        """
        found: list[Task] = []

        def place() -> Content:
            task = wanted()
            if task.state is TaskState.ACCEPTED:
                raise _Counted
            content = self._place(task, update)
            self._quota.take(task_id, update)
            found.append(task)
            return content

        def look() -> None:
            self._look(found[0], update)

        try:
            return await receive(place, task_id, update, offset, chunks, look)
        except _Counted:
            return True

    def is_sound(self, task: Task, update: Digest) -> bool:
        """Whether the update has come, and was found to be as the task wants it."""
        verdict = self._verdicts.get(_in_phase(task, update))
        return verdict is not None and verdict.is_sound

    def require_sound(self, task: Task, update: Digest) -> None:
        """Refuse an update that is not here, or not as the task wants it; blocks."""
        verdict = self._verdicts.get(_in_phase(task, update))
        if verdict is None:
            if not self._contents.of(task.key.run_id).blobs.confirm(update):
                raise not_uploaded(update)
            verdict = self._look(task, update)
        if not verdict.is_sound:
            with task_context(task):
                log.warning("update refused: %s", verdict.message)
            self._refuse(task, verdict.flaw)
            raise InvalidInput(verdict.message)

    def _place(self, task: Task, update: Digest) -> Content:
        """Where the update goes; LimitExceeded if it is larger than it can be."""
        size_bytes = sum(form.size_bytes for form in self._form(task).values())
        largest = size_bytes + _HEADER_SLACK_BYTES
        if update.size_bytes > largest:
            self._refuse(task, "too large")
            raise LimitExceeded(
                f"an update of {update.size_bytes} bytes for task {task.task_id!r}: what it trains "
                f"has {size_bytes}, so {largest} is the most"
            )
        return self._contents.of(task.key.run_id)

    def _refuse(self, task: Task, reason: str) -> None:
        self._metrics.update_refused(reason)
        self._tasks.refuse(task.device_id, task.task_id, reason, self._clock())

    def _look(self, task: Task, update: Digest) -> _Verdict:
        """What is to be said of an update that is here; it is not looked at again."""
        verdict = self._judged(task, update)
        self._verdicts.put(_in_phase(task, update), verdict)
        return verdict

    def _judged(self, task: Task, update: Digest) -> _Verdict:
        path = self._contents.of(task.key.run_id).blobs.local_path(update)
        what = f"update {update}"  # whoever sent it: others may send the same
        recipe = self._recipes.of(task.key.run_id, task.run_uid)
        flaw = "malformed"
        try:
            received = StoredTensors(path, what)
            received.require_form(self._form(task), what)
            flaw = "not finite"
            # Also of an update whose scale or change is finite, but not what they lead to.
            weights = unpacked(recipe, received, self._models(task.key.run_id, task.weights))
            require_finite_weights(weights, what)
            flaw = "unusable"
            recipe.method.check_update(weights, what)
        except InvalidInput as error:
            return _Verdict(flaw, str(error))
        return _Verdict()

    def _form(self, task: Task) -> dict[str, TensorForm]:
        """The tensors that an update for this task has, and must have."""
        return self._forms(task.key, task.run_uid, task.weights)

    def _read_form(self, key: PhaseKey, run_uid: str, weights: Digest) -> dict[str, TensorForm]:
        recipe = self._recipes.of(key.run_id, run_uid)
        shapes = self._models(key.run_id, weights).shapes()
        trained = [n for n in shapes if recipe.method.trains(n, key.round_number)]
        return packed_form(recipe, {name: shapes[name] for name in trained})

    def _read_model(self, run_id: str, weights: Digest) -> StoredWeights:
        """The weights at which tasks begin."""
        path = self._contents.of(run_id).blobs.local_path(weights)
        return StoredWeights(path, f"model {weights}")


def _in_phase(task: Task, update: Digest) -> tuple[object, ...]:
    """What makes an update sound or not: those of a phase begin at the same model."""
    return task.run_uid, task.key, update
