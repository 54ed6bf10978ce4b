"""Results on disk: each is stored before it is sent, so nothing is computed twice."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from edge_client.device.content_cache import ContentCache
from edge_client.device.device_folder import DeviceFolder, Report
from hfmds.algorithm.local_work import Memory, Progress
from hfmds.domain.digest import Digest
from hfmds.domain.methods import TaskKind
from hfmds.domain.tasks import Assignment, EvaluationReport, SynthesisReport, UpdateReport
from hfmds.errors import Unavailable

log = logging.getLogger(__name__)

R = TypeVar("R")


class FinishedResults:
    """Stores results, and finds that of a task which an earlier process finished.

    On a full disk a result waits for room: computing it again would cost more. Blocks: call it in
    a thread.
    """

    def __init__(
        self, state: DeviceFolder, cache: ContentCache, wait_for_room_seconds: float = 1.0
    ) -> None:
        self._state = state
        self._cache = cache
        self._wait_for_room_seconds = wait_for_room_seconds

    def find(self, task: Assignment) -> Report | None:
        """Return the report of a task that an earlier process finished."""
        report = self._state.result(task.task_id)
        if report is None:
            return None
        content = _content_of(report)
        if content and not self._cache.claim(content):
            return None
        log.info("the result of this task is on disk; submitting it")
        return report

    def put(self, content: bytes, progress: Progress) -> Digest:
        """Store the content of a result; `progress` raises when the task is over."""
        return self._with_room((), lambda: self._cache.put(content), progress)

    def keep(
        self, task: Assignment, kind: TaskKind, memory: Memory, report: Report, progress: Progress
    ) -> None:
        """Store a report, with what the device remembers of its task."""

        def save() -> None:
            # In this order: a task whose result is on disk does not make its memory again.
            self._state.save_memory(task.run_uid, kind, task.round_number, memory)
            self._state.save_result(task.task_id, report)

        content = _content_of(report)
        self._with_room((content,) if content else (), save, progress)

    def _with_room(self, needed: Sequence[Digest], save: Callable[[], R], progress: Progress) -> R:
        logged = False
        while True:
            try:
                return save()
            except Unavailable as error:
                if not logged:
                    log.error("%s; until then the result of this task waits in memory", error)
                    logged = True
                self._cache.evict(needed, max_bytes=0)  # drop what can be fetched again
            progress(1, 1)  # raises when the task is over
            time.sleep(self._wait_for_room_seconds)


def _content_of(report: Report) -> Digest | None:
    """Return the content that a report is about; an evaluation has numbers only."""
    match report:
        case UpdateReport(update):
            return update
        case SynthesisReport(batch):
            return batch
        case EvaluationReport():
            return None
