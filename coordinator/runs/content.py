"""What runs consist of: their recipes, and by digest their models and uploaded updates.

Each run has its own place for content. Runs with the same seed produce the same bytes, and a run
must be able to delete its updates without asking whether another run needs them.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from pathlib import Path

from coordinator.records.runs import RunRecords
from hfmds.domain.digest import Digest
from hfmds.domain.learning import Weights
from hfmds.domain.recipe import Recipe
from hfmds.errors import NotFound
from hfmds.storage.blobs import Blobs
from hfmds.storage.files import remove_folder
from hfmds.storage.locations import BlobsLocation
from hfmds.storage.staging import Staging
from hfmds.wire.chunks import Content
from hfmds.wire.tensors import StoredWeights, encode_weights

_KEPT_RECIPES = 256
_MARKS = ".marks"  # not a valid run id


class RunContents:
    """Opens the content of each run."""

    def __init__(self, blobs: BlobsLocation, staging_folder: Path, max_blob_bytes: int) -> None:
        self._blobs = blobs
        self._staging_folder = staging_folder
        self.max_blob_bytes = max_blob_bytes
        self._opened: dict[str, Content] = {}
        self._lock = threading.Lock()

    def marks(self) -> Blobs:
        """Open the place, beside those of runs, where coordinators mark the content as theirs."""
        return self._blobs.place(_MARKS)

    def purge(self, older_than_seconds: float, now: float) -> int:
        """Remove interrupted uploads that no device resumed for this time; return their number."""
        self._staging_folder.mkdir(parents=True, exist_ok=True)
        runs = [path.name for path in self._staging_folder.iterdir() if path.is_dir()]
        return sum(self.of(run_id).staging.purge(older_than_seconds, now) for run_id in runs)

    def remove(self, run_id: str) -> None:
        """Delete all content of a run, also interrupted uploads. Nothing may use it any longer."""
        with self._lock:
            self._opened.pop(run_id, None)
            remove_folder(self._staging_folder / run_id)
            self._blobs.remove(run_id)

    def of(self, run_id: str) -> Content:
        """Open the content of one run; may touch the disk."""
        with self._lock:
            content = self._opened.get(run_id)
            if content is None:
                staging = Staging(self._staging_folder / run_id, self.max_blob_bytes)
                content = self._opened[run_id] = Content(self._blobs.place(run_id), staging)
            return content


class Models:
    """The models of one run. Each is encoded and stored once, however often it is put."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self._last: tuple[Weights, Digest] | None = None

    def put(self, weights: Weights) -> Digest:
        """Store a model unless it is the last one. On return it is durable."""
        # A round puts the same object when it hands the model out and when it records it.
        if self._last is None or self._last[0] is not weights:
            self._last = weights, self.blobs.put_bytes(encode_weights(weights))
        return self._last[1]

    def open(self, digest: Digest, name: str) -> StoredWeights:
        """Open a stored model. Putting it again does not store it again."""
        weights = StoredWeights(self.blobs.local_path(digest), name)
        self._last = weights, digest
        return weights


class Recipes:
    """The recipes of runs, cached: each call of a device needs one, and none changes."""

    def __init__(self, runs: RunRecords) -> None:
        self._runs = runs
        self._recipes = lru_cache(_KEPT_RECIPES)(self._read)

    def of(self, run_id: str, run_uid: str) -> Recipe:
        """Return the recipe of a run; NotFound if another run has its id now."""
        return self._recipes(run_id, run_uid)

    def _read(self, run_id: str, run_uid: str) -> Recipe:
        run = self._runs.get(run_id)
        if run.run_uid != run_uid:
            raise NotFound(f"run {run_uid!r} is gone; check in again for new work")
        return run.spec.recipe
