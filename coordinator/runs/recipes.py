"""The recipes of runs, remembered: each call of a device needs one, and none ever changes."""

from __future__ import annotations

from functools import lru_cache

from coordinator.records.runs import RunRecords
from hfmds.domain.recipe import Recipe
from hfmds.errors import NotFound

_REMEMBERED = 256


class Recipes:
    """Finds them. Thread-safe."""

    def __init__(self, runs: RunRecords) -> None:
        self._runs = runs
        self._recipes = lru_cache(_REMEMBERED)(self._read)

    def of(self, run_id: str, run_uid: str) -> Recipe:
        """The recipe of a run that is there."""
        return self._recipes(run_id, run_uid)

    def _read(self, run_id: str, run_uid: str) -> Recipe:
        run = self._runs.get(run_id)
        if run.run_uid != run_uid:  # it was deleted, and another one has its id
            raise NotFound(f"there is no run {run_uid!r} any more; check in again for new work")
        return run.spec.recipe
