"""Images loaded once, before it is known which runs they are for, and labelled as each run counts.

A run may name its classes; which number "cat" has is then the run's business. So the images are
kept with the names their owner gave them, and mapped by name when a run comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hfmds.algorithm.recipes import Recipe
from hfmds.algorithm.types import LabelledImages
from hfmds.data.folders import class_folders, is_class_number, is_folder
from hfmds.data.manifests import read_manifest
from hfmds.data.sources import load_images
from hfmds.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class NamedImages:
    """Images whose label i means the class `class_names[i]`; without names, the class number i."""

    what: str  # what these images are, for errors
    images: LabelledImages
    class_names: tuple[str, ...] = ()
    # By its folder, or in a list of files: then label i is only a place in `class_names`.
    named_by_owner: bool = False

    def __len__(self) -> int:
        return len(self.images)

    def labelled_for(self, recipe: Recipe) -> LabelledImages:
        """The images with the recipe's class numbers, or an error that says what does not fit."""
        images = self.images
        if self.class_names and (recipe.class_names or self.named_by_owner):
            numbers = np.zeros(len(self.class_names), np.int64)
            for label in np.unique(images.labels).tolist():  # a class without images may be unknown
                numbers[label] = self._number(self.class_names[label], recipe.class_names)
            images = LabelledImages(images.pixels, numbers[images.labels])
        images.require_fit(recipe.model, self.what)
        return images

    def _number(self, name: str, run_names: tuple[str, ...]) -> int:
        """The run's number of a class; a run without names has folders named by number."""
        if name in run_names:
            return run_names.index(name)
        if run_names:
            raise ConfigurationError(
                f"class {name!r} of {self.what} is not one of the run's classes "
                f"({', '.join(run_names)}); rename or remove it"
            )
        if not is_class_number(name):
            raise ConfigurationError(
                f"class {name!r} of {self.what} is not a class number, and the run has no class "
                "names; rename it, or give the run class names"
            )
        return int(name)


def load_named_images(source: str, what: str, class_names: tuple[str, ...] = ()) -> NamedImages:
    """The images of a source (see `hfmds.data.sources`); ConfigurationError if they are unusable.

    `class_names` gives numbered data names, and class folders numbers; `what` names the images in
    errors, e.g. "the held-out set".
    """
    what = f"{what} {source}"
    if is_folder(Path(source)) and not class_names:
        folder = Path(source).absolute()  # so that a folder called "digits" is a folder
        names = tuple(path.name for path in class_folders(folder))
        return NamedImages(what, load_images(str(folder), names), names, named_by_owner=True)
    if source.endswith(".csv") and not class_names:
        names = _names_in(Path(source))
        return NamedImages(what, load_images(source, names), names, named_by_owner=True)
    images = load_images(source, class_names)
    if class_names and not 0 <= images.labels.min() <= images.labels.max() < len(class_names):
        raise ConfigurationError(
            f"labels of {what} run from {images.labels.min()} to {images.labels.max()}, but "
            f"{len(class_names)} class names are given, for 0 to {len(class_names) - 1}"
        )
    return NamedImages(what, images, class_names)


def _names_in(manifest: Path) -> tuple[str, ...]:
    if not manifest.is_file():
        return ()  # `load_images` says so
    return tuple(sorted(set(read_manifest(manifest)[1])))
