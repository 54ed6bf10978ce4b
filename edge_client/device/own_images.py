"""The device's own images, which may grow while it runs: a camera adds a file, a label is mended.

Looked at between tasks, and read again when a file has changed. What cannot be read, for a file is
being written just now, leaves the device with what it had. It is tried again when it has changed
once more, and now and then: a broken file that nobody mends must not have all others read with
every look.
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
    """Images that tasks can be done with."""

    def labelled_for(self, recipe: Recipe) -> LabelledImages:
        """The images with the recipe's class numbers, or an error that says what does not fit."""


class OwnImages:
    """Images of a source (see `hfmds.data.sources`), as they were at the last look."""

    def __init__(
        self,
        source: str,
        what: str,
        class_names: tuple[str, ...] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the source; ConfigurationError if it cannot be used."""
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
        """The images with the recipe's class numbers, or an error that says what does not fit."""
        return self._images.labelled_for(recipe)

    def look(self) -> None:
        """Read the images again if they have changed. Blocks: not on the event loop."""
        seen = _fingerprint(self._source)
        if seen == self._seen or self._is_unreadable(seen):
            return
        try:
            images = self._read()
        except ConfigurationError as error:
            self._unreadable = seen, self._monotonic() + _TRY_AGAIN_SECONDS
            if str(error) != self._trouble:
                log.warning("the images have changed, but %s; those of before stay in use", error)
                self._trouble = str(error)
            return
        if len(images) != len(self._images):
            log.info("%d own images, after %d", len(images), len(self._images))
        # Files that came while we read are seen as changed at the next look.
        self._seen, self._images, self._trouble, self._unreadable = seen, images, "", None

    def _is_unreadable(self, seen: _Fingerprint) -> bool:
        if self._unreadable is None:
            return False
        found, again_at = self._unreadable
        return found == seen and self._monotonic() < again_at

    def _read(self) -> NamedImages:
        return load_named_images(self._source, self._what, self._class_names)


def _fingerprint(source: str) -> _Fingerprint:
    """Name, size, time and inode of each file; of data sets by name, nothing."""
    found = []
    for file in _files_of(Path(source)):
        try:
            stat = file.stat()
        except OSError:  # gone meanwhile, or no file at all
            continue
        found.append((str(file), stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return tuple(found)


def _files_of(path: Path) -> list[Path]:
    """All files that a source is read from."""
    if path.is_dir():
        return sorted(Path(parent, name) for parent, _, names in os.walk(path) for name in names)
    match path.suffix:
        case ".npy":
            return [path, labels_beside(path)]
        case ".csv":
            with suppress(ConfigurationError):  # half written: seen as changed when it is whole
                return [path, *read_manifest(path)[0]]
    return [path]
