"""Data sets as trials use them: loaded once, known by their content, and cut to a trial's parts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hfmds.data.datasets import Dataset, Progress, load_dataset, subset
from hfmds.data.splits import Indices, SplitSpec, split
from hfmds.data.statistics import normalisation_of
from hfmds.domain.learning import LabelledImages
from hfmds.domain.recipe import Normalisation

_DECIMALS = 6  # of mean and deviation; their last digits may depend on how numpy sums

# The test images are the data set's affair, not a trial's: all trials are tested on the same.
_TEST_SEED = 0


@dataclass(frozen=True, slots=True)
class LoadedData:
    """A data set with what identifies it and what recipes need to know of it."""

    dataset: Dataset
    digest: str  # of all its images and labels: a folder may be moved, or its images changed
    normalisation: Normalisation

    @classmethod
    def of(cls, dataset: Dataset) -> LoadedData:
        """Take a look at a data set."""
        exact = normalisation_of(dataset.train)
        rounded = Normalisation(
            tuple(round(m, _DECIMALS) for m in exact.mean),
            tuple(round(s, _DECIMALS) for s in exact.std),
        )
        return cls(dataset, _digest(dataset), rounded)

    @property
    def label(self) -> str:
        """Its name as results show it."""
        return folder_label(self.dataset.name)

    def record(self) -> dict[str, Any]:
        """What it is, as JSON knows it."""
        return {
            "sha256": self.digest,
            "train_images": len(self.dataset.train),
            "test_images": len(self.dataset.test),
            "classes": self.dataset.classes,
            "image_shape": list(self.dataset.image_shape),
        }

    def shards(self, spec: SplitSpec, seed: int) -> list[Indices]:
        """Which training images each device holds."""
        return split(self.dataset.train.labels, spec, seed)

    def test(self, count: int | None) -> LabelledImages:
        """The test images, or so many of them if there are more."""
        test = self.dataset.test
        return test if count is None or count >= len(test) else subset(test, count, _TEST_SEED)


class DataShelf:
    """Data sets by name, each loaded when it is first asked for."""

    def __init__(
        self, root: Path, *, download: bool = False, progress: Progress | None = None
    ) -> None:
        self._root = root
        self._download = download
        self._progress = progress
        self._loaded: dict[str, LoadedData] = {}

    def get(self, name: str) -> LoadedData:
        if name not in self._loaded:
            dataset = load_dataset(
                name, self._root, download=self._download, progress=self._progress
            )
            self._loaded[name] = LoadedData.of(dataset)
        return self._loaded[name]


def folder_label(name: str) -> str:
    """A data set's name; of a folder only the last part, for results may be published."""
    return Path(name).resolve().name if "/" in name else name


def _digest(dataset: Dataset) -> str:
    digest = hashlib.sha256(repr((dataset.classes, dataset.image_shape)).encode())
    for images in (dataset.train, dataset.test):
        digest.update(repr(len(images)).encode())
        digest.update(np.ascontiguousarray(images.pixels).data)
        digest.update(np.ascontiguousarray(images.labels).data)
    return digest.hexdigest()
