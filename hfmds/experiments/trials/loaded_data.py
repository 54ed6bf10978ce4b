"""Data sets of trials: loaded once, identified by their content, and cut to a trial's parts."""

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

_DECIMALS = 6  # of mean and deviation; the last digits depend on how numpy sums

# All trials of a data set have the same test images.
_TEST_SEED = 0


@dataclass(frozen=True, slots=True)
class LoadedData:
    """A data set with its digest and its normalisation."""

    dataset: Dataset
    digest: str  # of all images and labels: a folder may move, or its images may change
    normalisation: Normalisation

    @classmethod
    def of(cls, dataset: Dataset) -> LoadedData:
        """Compute digest and normalisation of a data set."""
        exact = normalisation_of(dataset.train)
        rounded = Normalisation(
            tuple(round(m, _DECIMALS) for m in exact.mean),
            tuple(round(s, _DECIMALS) for s in exact.std),
        )
        return cls(dataset, _digest(dataset), rounded)

    @property
    def label(self) -> str:
        """The name of the data set in results."""
        return folder_label(self.dataset.name)

    def record(self) -> dict[str, Any]:
        """Return the facts of the data set for JSON."""
        return {
            "sha256": self.digest,
            "train_images": len(self.dataset.train),
            "test_images": len(self.dataset.test),
            "classes": self.dataset.classes,
            "image_shape": list(self.dataset.image_shape),
        }

    def shards(self, spec: SplitSpec, seed: int) -> list[Indices]:
        """Return the training images of each device."""
        return split(self.dataset.train.labels, spec, seed)

    def test(self, count: int | None) -> LabelledImages:
        """Return the test images, at most `count` of them."""
        test = self.dataset.test
        return test if count is None or count >= len(test) else subset(test, count, _TEST_SEED)


class DataShelf:
    """Data sets by name; the first use loads one."""

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
    """Return the name of a data set; of a folder only its last part, as results may be public."""
    return Path(name).resolve().name if "/" in name else name


def _digest(dataset: Dataset) -> str:
    digest = hashlib.sha256(repr((dataset.classes, dataset.image_shape)).encode())
    for images in (dataset.train, dataset.test):
        digest.update(repr(len(images)).encode())
        digest.update(np.ascontiguousarray(images.pixels).data)
        digest.update(np.ascontiguousarray(images.labels).data)
    return digest.hexdigest()
