"""Images that are loaded before their run is known, and relabelled for each run.

A run may name its classes and so decides the number of "cat". Therefore the images keep the names
that their owner gave them, and are mapped by name when a run comes.

Errors for other parties (`public`) contain neither the place of the images nor unknown class names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hfmds.data.folders import class_folders, is_class_number, is_folder
from hfmds.data.manifests import read_manifest
from hfmds.data.packed import load_npz
from hfmds.data.sources import load_images
from hfmds.domain.learning import LabelledImages
from hfmds.domain.recipe import Recipe
from hfmds.errors import ConfigurationError, InvalidInput


@dataclass(frozen=True, slots=True)
class NamedImages:
    """Images whose label i means the class `class_names[i]`; without names, the class number i."""

    what: str  # names the images in errors
    images: LabelledImages
    class_names: tuple[str, ...] = ()
    # By a folder, a list or a packed file: then label i is only an index of `class_names`.
    named_by_owner: bool = False
    source: str = ""  # the place of the images

    def __len__(self) -> int:
        return len(self.images)

    def labelled_for(self, recipe: Recipe) -> LabelledImages:
        """Return the images with the recipe's class numbers; InvalidInput if they do not fit."""
        images = self.images
        if self.class_names and (recipe.class_names or self.named_by_owner):
            numbers = np.zeros(len(self.class_names), np.int64)
            for label in np.unique(images.labels).tolist():  # a class without images may be unknown
                numbers[label] = self._number(self.class_names[label], recipe.class_names)
            images = LabelledImages(images.pixels, numbers[images.labels])
        try:
            images.require_fit(recipe.model, self.what)
        except InvalidInput as error:
            raise self._unfit(str(error), str(error)) from None
        return images

    def _number(self, name: str, run_names: tuple[str, ...]) -> int:
        """Return the run's number of a class; without class names it is the folder's name."""
        if name in run_names:
            return run_names.index(name)
        if run_names:
            reason = (
                f"is not one of the run's classes ({', '.join(run_names)}); rename or remove it"
            )
        elif not is_class_number(name):
            reason = (
                "is not a class number, and the run has no class names; rename it, or give the run "
                "class names"
            )
        else:
            return int(name)
        raise self._unfit(
            f"class {name!r} of {self.what} {reason}",
            f"a class of {self.what} {reason}; the log of its owner names it",
        )

    def _unfit(self, message: str, public: str) -> InvalidInput:
        return InvalidInput(f"{message} ({self.source})" if self.source else message, public=public)


def load_named_images(source: str, what: str, class_names: tuple[str, ...] = ()) -> NamedImages:
    """Load the images of a source (see `hfmds.data.sources`); ConfigurationError if that fails.

    `class_names` gives numbered data names, and class folders numbers; `what` names the images in
    errors, e.g. "the held-out set".
    """
    if is_folder(Path(source)) and not class_names:
        folder = Path(source).absolute()  # so that a folder called "digits" is a folder
        names = tuple(path.name for path in class_folders(folder))
        images = load_images(str(folder), names)
        return NamedImages(what, images, names, named_by_owner=True, source=source)
    if source.endswith(".csv") and not class_names:
        names = _names_in(Path(source))
        images = load_images(source, names)
        return NamedImages(what, images, names, named_by_owner=True, source=source)
    if source.endswith(".npz") and not class_names and (names := _names_packed_in(Path(source))):
        images = load_images(source, names)
        return NamedImages(what, images, names, named_by_owner=True, source=source)
    images = load_images(source, class_names)
    if class_names and not 0 <= images.labels.min() <= images.labels.max() < len(class_names):
        raise ConfigurationError(
            f"labels of {what} {source} run from {images.labels.min()} to {images.labels.max()}, "
            f"but {len(class_names)} class names are given, for 0 to {len(class_names) - 1}"
        )
    return NamedImages(what, images, class_names, source=source)


def _names_in(manifest: Path) -> tuple[str, ...]:
    if not manifest.is_file():
        return ()  # `load_images` reports a missing file
    return tuple(sorted(set(read_manifest(manifest)[1])))


def _names_packed_in(file: Path) -> tuple[str, ...]:
    return load_npz(file)[1] if file.is_file() else ()  # `load_images` reports a missing file
