"""The device's own images, loaded once at start and labelled as each run counts its classes.

A run may name its classes; which number "cat" has is then the run's business, and known only when a
task arrives. So the images are kept with the names their owner gave them, and mapped by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hfmds.algorithm.types import LabelledImages, Recipe
from hfmds.data.sources import load_images
from hfmds.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class LocalImages:
    """Images whose label i means the class `class_names[i]`; without names, the class number i."""

    source: str
    images: LabelledImages
    class_names: tuple[str, ...] = ()
    named_by_folders: bool = False  # then label i is only a place in `class_names`, no number

    def __len__(self) -> int:
        return len(self.images)

    def labelled_for(self, recipe: Recipe) -> LabelledImages:
        """The images with the recipe's class numbers, or an error that says what does not fit."""
        images = self.images
        if self.class_names and (recipe.class_names or self.named_by_folders):
            numbers = np.zeros(len(self.class_names), np.int64)
            for label in np.unique(images.labels).tolist():  # a class without images may be unknown
                numbers[label] = self._number(self.class_names[label], recipe.class_names)
            images = LabelledImages(images.pixels, numbers[images.labels])
        images.require_fit(recipe.model, f"the device's data {self.source}")
        return images

    def _number(self, name: str, run_names: tuple[str, ...]) -> int:
        """The run's number of a class; a run without names has folders named by number."""
        if name in run_names:
            return run_names.index(name)
        if run_names:
            raise ConfigurationError(
                f"class {name!r} of the device's data {self.source} is not one of the "
                f"run's classes ({', '.join(run_names)}); rename or remove it"
            )
        if not re.fullmatch(r"[0-9]+", name):
            raise ConfigurationError(
                f"class folder {Path(self.source) / name} is not a class number, and the run "
                "has no class names; rename the folder, set HFMDS_CLASS_NAMES, "
                "or give the run class names"
            )
        return int(name)


def load_local_images(source: str, class_names: tuple[str, ...] = ()) -> LocalImages:
    """The images of a source (see `hfmds.data.sources`); ConfigurationError if they are unusable.

    `class_names` gives numbered data names, and class folders numbers.
    """
    if Path(source).is_dir() and not class_names:
        source = str(Path(source).absolute())  # so that a folder called "digits" is a folder
        folders = _class_folders(source)
        return LocalImages(source, load_images(source, folders), folders, named_by_folders=True)
    images = load_images(source, class_names)
    if class_names and not 0 <= images.labels.min() <= images.labels.max() < len(class_names):
        raise ConfigurationError(
            f"labels of {source} run from {images.labels.min()} to {images.labels.max()}, but "
            f"HFMDS_CLASS_NAMES has {len(class_names)} names, for 0 to {len(class_names) - 1}"
        )
    return LocalImages(source, images, class_names)


def _class_folders(source: str) -> tuple[str, ...]:
    folders = (path for path in Path(source).iterdir() if path.is_dir())
    return tuple(sorted(path.name for path in folders if not path.name.startswith(".")))
