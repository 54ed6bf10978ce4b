"""Exports snapshots as files for other tools, shard by shard.

    npz          one file of `images`, `labels` and, of mixtures, `shares`; made in memory
    folder       a PNG per image in one folder per class, and images.csv with what is known of each
    webdataset   a tar file of NUMBER.png, NUMBER.cls and NUMBER.json, as WebDataset reads it

The first two are data sources of devices, too (`--data`). PNG keeps every pixel as it is.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hfmds.algorithm.pixels import as_uint8
from hfmds.algorithm.pool import concatenate
from hfmds.cli.downloads import replacing
from hfmds.cli.text import counted
from hfmds.data.packed import save_npz
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pools import Shard, Snapshot
from hfmds.errors import ConfigurationError

Add: TypeAlias = Callable[[Shard, SyntheticBatch], None]
"""A function that takes the next shard of a snapshot and its images."""

INDEX = "images.csv"
_PNG_CHANNELS = (1, 3)


class SnapshotFormat(StrEnum):
    """The form of an exported snapshot."""

    NPZ = "npz"
    FOLDER = "folder"
    WEBDATASET = "webdataset"

    @property
    def suffix(self) -> str:
        """The ending of file names."""
        return {"npz": ".npz", "folder": "", "webdataset": ".tar"}[self.value]


@contextmanager
def exporting(
    path: Path, kind: SnapshotFormat, snapshot: Snapshot, class_names: Sequence[str] = ()
) -> Iterator[Add]:
    """Give it the shards in their order; the export is in its place, whole, if the block succeeds.

    `class_names` name the folders of classes, which else have numbers.
    """
    model = snapshot.spec.model
    if class_names and len(class_names) != model.classes:
        raise ConfigurationError(
            f"--class-names: {counted(len(class_names), 'name')} for a snapshot of "
            f"{counted(model.classes, 'class', 'classes')}"
        )
    if (
        kind is SnapshotFormat.NPZ and path.suffix != SnapshotFormat.NPZ.suffix
    ):  # before the download
        raise ConfigurationError(f"{path}: the file name must end in .npz")
    if kind is not SnapshotFormat.NPZ and model.channels not in _PNG_CHANNELS:
        raise ConfigurationError(
            f"images of {model.channels} channels cannot be PNG files; use --format npz"
        )
    match kind:
        case SnapshotFormat.NPZ:
            with _npz(path) as add:
                yield add
        case SnapshotFormat.FOLDER:
            with _folder(path, class_names or tuple(map(str, range(model.classes)))) as add:
                yield add
        case SnapshotFormat.WEBDATASET:
            with _webdataset(path) as add:
                yield add


@contextmanager
def _npz(path: Path) -> Iterator[Add]:
    batches: list[SyntheticBatch] = []
    with replacing(path) as draft:
        yield lambda shard, batch: batches.append(batch)
        images = concatenate(batches).images
        save_npz(draft, replace(images, pixels=as_uint8(images.pixels)))


@contextmanager
def _folder(path: Path, class_names: Sequence[str]) -> Iterator[Add]:
    for name in class_names:
        if Path(name).name != name or name.startswith("."):
            raise ConfigurationError(f"class name {name!r} cannot be the name of a folder")
    with _new_folder(path) as draft, (draft / INDEX).open("w", newline="") as file:
        rows = csv.writer(file)
        count = 0

        def add(shard: Shard, batch: SyntheticBatch) -> None:
            nonlocal count
            for image, known in _images(shard, batch):
                name = f"{class_names[known['label']]}/{count:07}.png"
                if not count:
                    rows.writerow(["file", *_flat(known)])
                (draft / name).parent.mkdir(exist_ok=True)
                (draft / name).write_bytes(image)
                rows.writerow([name, *_flat(known).values()])
                count += 1

        yield add


@contextmanager
def _webdataset(path: Path) -> Iterator[Add]:
    with replacing(path) as draft, tarfile.open(draft, "w") as tar:
        count = 0

        def add(shard: Shard, batch: SyntheticBatch) -> None:
            nonlocal count
            for image, known in _images(shard, batch):
                parts = {
                    "png": image,
                    "cls": str(known["label"]).encode(),
                    "json": json.dumps(known).encode(),
                }
                for kind, data in parts.items():
                    member = tarfile.TarInfo(f"{count:07}.{kind}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
                count += 1

        yield add


def _images(shard: Shard, batch: SyntheticBatch) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each image as a PNG with its label and measurements."""
    shares = batch.images.shares
    for index, pixels in enumerate(as_uint8(batch.images.pixels)):
        known: dict[str, Any] = {
            "label": int(batch.images.labels[index]),
            "contributor": shard.contributor,
            "round": shard.first_round,
        }
        for name, values in batch.measurements.items():
            known[name] = round(float(values[index]), 4)
        if shares is not None:
            known["shares"] = [round(share, 6) for share in shares[index].tolist()]
        yield _png(pixels), known


def _flat(known: dict[str, Any]) -> dict[str, Any]:
    """Return the columns with one more for the share of each class."""
    shares = known.get("shares", [])
    plain = {name: value for name, value in known.items() if name != "shares"}
    return {**plain, **{f"share_{c}": share for c, share in enumerate(shares)}}


def _png(pixels: NDArray[np.uint8]) -> bytes:
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Make a folder that takes the name `path` if the block succeeds; `path` must not exist."""
    draft = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        if path.exists():
            raise ConfigurationError(f"{path} exists already; remove it, or name another folder")
        draft.mkdir()
        yield draft
        draft.rename(path)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
