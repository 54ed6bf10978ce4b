"""The device's own images, which may change while it runs: a camera adds files, labels are fixed.

The device looks at them between tasks and reads them again when a file has changed. If that fails,
for example while a file is being written, it goes on with the images it has. It tries again at the
next change, or after ten minutes: one broken file must not cause a full read at every look.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias

from hfmds.data.manifests import read_manifest
from hfmds.data.named_images import NamedImages, load_named_images
from hfmds.data.sources import labels_beside
from hfmds.domain.learning import LabelledImages
from hfmds.domain.recipe import Recipe
from hfmds.errors import ConfigurationError

log = logging.getLogger(__name__)

_Fingerprint: TypeAlias = tuple[tuple[str, int, int, int], ...]

_TRY_AGAIN_SECONDS = 600.0


class Images(Protocol):
    """Images that tasks use."""

    def labelled_for(self, recipe: Recipe) -> LabelledImages:
        """Return the images with the recipe's class numbers; an error says what does not fit."""

    def __len__(self) -> int:
        """Return the number of images."""

    def look(self) -> None:
        """Read the images again if they have changed. Blocks: call it in a thread."""


class OwnImages:
    """The images of a source (see `hfmds.data.sources`), as of the last look."""

    def __init__(
        self,
        source: str,
        what: str,
        class_names: tuple[str, ...] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the source; raises ConfigurationError if it cannot be used."""
        self._source = source
        self._what = what
        self._class_names = class_names
        self._seen = _fingerprint(source)
        self._images = self._read()
        self._trouble = ""
        self._monotonic = monotonic
        self._unreadable: tuple[_Fingerprint, float] | None = None  # and when to try it again

    def __len__(self) -> int:
        return len(self._images)

    def labelled_for(self, recipe: Recipe) -> LabelledImages:
        """Return the images with the recipe's class numbers; an error says what does not fit."""
        return self._images.labelled_for(recipe)

    def look(self) -> None:
        """Read the images again if they have changed. Blocks: call it in a thread."""
        seen = _fingerprint(self._source)
        if seen == self._seen or self._is_unreadable(seen):
            return
        try:
            images = self._read()
        except ConfigurationError as error:
            self._unreadable = seen, self._monotonic() + _TRY_AGAIN_SECONDS
            if str(error) != self._trouble:
                log.warning(
                    "the images have changed, but %s; the device goes on with the old ones", error
                )
                self._trouble = str(error)
            return
        if len(images) != len(self._images):
            log.info("%d own images now, %d before", len(images), len(self._images))
        # The next look sees files that came during this read as changed.
        self._seen, self._images, self._trouble, self._unreadable = seen, images, "", None

    def _is_unreadable(self, seen: _Fingerprint) -> bool:
        if self._unreadable is None:
            return False
        fingerprint, again_at = self._unreadable
        return fingerprint == seen and self._monotonic() < again_at

    def _read(self) -> NamedImages:
        return load_named_images(self._source, self._what, self._class_names)


def _fingerprint(source: str) -> _Fingerprint:
    """Return name, size, time and inode of each file; nothing for a named data set."""
    fingerprint = []
    for file in _files_of(Path(source)):
        try:
            stat = file.stat()
        except OSError:  # deleted since, or no file
            continue
        fingerprint.append((str(file), stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return tuple(fingerprint)


def _files_of(path: Path) -> list[Path]:
    """Return all files of a source."""
    if path.is_dir():
        return sorted(Path(parent, name) for parent, _, names in os.walk(path) for name in names)
    match path.suffix:
        case ".npy":
            return [path, labels_beside(path)]
        case ".csv":
            with suppress(ConfigurationError):  # half written; the next look sees the change
                return [path, *read_manifest(path)[0]]
    return [path]
