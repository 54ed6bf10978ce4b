"""Where a run's bytes are: model versions and uploaded updates, by digest.

Each run has a place of its own. Runs with the same seed produce the same bytes, and one run must be
able to drop its updates without asking whether another still needs them.
"""

from __future__ import annotations

import threading
from pathlib import Path

from hfmds.storage.blobs import Blobs
from hfmds.storage.files import remove_folder
from hfmds.storage.locations import BlobsLocation
from hfmds.storage.staging import Staging
from hfmds.wire.chunks import Content

_MARKS = ".marks"  # no run can have this id


class RunContents:
    """Opens the content of each run."""

    def __init__(self, blobs: BlobsLocation, staging_folder: Path, max_blob_bytes: int) -> None:
        self._blobs = blobs
        self._staging_folder = staging_folder
        self.max_blob_bytes = max_blob_bytes
        self._opened: dict[str, Content] = {}
        self._lock = threading.Lock()

    def marks(self) -> Blobs:
        """A place beside the runs' for what says whose content this is."""
        return self._blobs.place(_MARKS)

    def purge(self, older_than_seconds: float, now: float) -> int:
        """Remove broken uploads that nobody resumed for so long; their number."""
        self._staging_folder.mkdir(parents=True, exist_ok=True)
        runs = [path.name for path in self._staging_folder.iterdir() if path.is_dir()]
        return sum(self.of(run_id).staging.purge(older_than_seconds, now) for run_id in runs)

    def remove(self, run_id: str) -> None:
        """Delete all content of a run, complete or not; nobody may be at work on it."""
        with self._lock:
            self._opened.pop(run_id, None)
            remove_folder(self._staging_folder / run_id)
            self._blobs.remove(run_id)

    def of(self, run_id: str) -> Content:
        """The content of one run; may touch the disk."""
        with self._lock:
            content = self._opened.get(run_id)
            if content is None:
                staging = Staging(self._staging_folder / run_id, self.max_blob_bytes)
                content = self._opened[run_id] = Content(self._blobs.place(run_id), staging)
            return content
