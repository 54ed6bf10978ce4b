"""Pictures of a pool for the web page: some images of each class, as one PNG, a class in each row.

Snapshots are immutable, so a picture is made once, by one caller at a time, and kept for a while;
not for long, since the store may have erased the images by then.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hfmds.algorithm.pixels import as_uint8
from hfmds.domain.digest import Digest
from hfmds.domain.learning import LabelledImages
from hfmds.domain.pools import Shard, Snapshot
from hfmds.errors import InvalidInput, NotFound
from hfmds.wire.chunks import Content
from hfmds.wire.shards import download_shards, shards_with

PER_CLASS = 16
MOST_CLASSES = 100
_TILE = 64  # larger images are shown smaller
_MOST_PIXELS = 4_000_000
_MOST_BYTES = 64 * 1024 * 1024  # to fetch for one picture
_KEPT = 8
_KEPT_SECONDS = 60.0


class SnapshotStore(Protocol):
    """What the web page needs of the synthesis store."""

    async def list_snapshots(self, run_id: str = "") -> tuple[Snapshot, ...]:
        """One run's snapshots, newest first and without shards."""

    async def get_snapshot(self, snapshot_id: str) -> Snapshot:
        """A snapshot with its shards."""

    async def download_shards(
        self, snapshot_id: str, digests: Sequence[Digest], content: Content
    ) -> int:
        """Bring shards here that are not here; returns the bytes that crossed the network."""


@dataclass(frozen=True, slots=True)
class Row:
    """The images of one class."""

    number: int  # of the class
    samples: int  # in the snapshot
    shown: int


@dataclass(frozen=True, slots=True)
class Picture:
    """A snapshot's images: tiles side by side, without gaps, one class under the other."""

    snapshot: Snapshot
    rows: tuple[Row, ...]
    tile_width: int
    tile_height: int
    png: bytes


class Gallery:
    """Makes pictures of snapshots. For one event loop."""

    def __init__(self, store: SnapshotStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._one_draws = asyncio.Lock()
        self._kept: dict[str, tuple[float, Picture]] = {}

    async def picture(self, run_id: str, snapshot_id: str) -> Picture:
        """The picture of a snapshot of this run."""
        async with self._one_draws:
            until = self._clock() - _KEPT_SECONDS
            self._kept = {name: kept for name, kept in self._kept.items() if kept[0] > until}
            if snapshot_id not in self._kept:
                while len(self._kept) >= _KEPT:
                    del self._kept[min(self._kept, key=lambda name: self._kept[name][0])]
                self._kept[snapshot_id] = self._clock(), await self._draw(snapshot_id)
            picture = self._kept[snapshot_id][1]
        if picture.snapshot.spec.run_id != run_id:
            raise NotFound(f"run {run_id!r} has no snapshot {snapshot_id!r}")
        return picture

    async def _draw(self, snapshot_id: str) -> Picture:
        snapshot = await self._store.get_snapshot(snapshot_id)
        spec, histogram = snapshot.spec.model, snapshot.class_histogram
        if spec.channels not in (1, 3):
            raise InvalidInput(
                f"images of {spec.channels} channels cannot be shown; `hfmds snapshots export` "
                "saves them"
            )
        classes = [number for number, samples in enumerate(histogram) if samples][:MOST_CLASSES]
        height, width = min(spec.height, _TILE), min(spec.width, _TILE)
        room = _MOST_PIXELS // (height * width * max(1, len(classes)))
        per_class = max(1, min(PER_CLASS, room))
        found: dict[int, list[NDArray[np.uint8]]] = {number: [] for number in classes}
        shards = _affordable(shards_with(snapshot.shards, classes, per_class))
        async for _, batch in download_shards(self._store, snapshot, shards):
            _collect(found, batch.images, per_class)
        rows = tuple(Row(c, histogram[c], len(found[c])) for c in classes)
        png = await asyncio.to_thread(_png, list(found.values()), height, width)
        return Picture(snapshot, rows, width, height, png)


def _affordable(shards: Sequence[Shard]) -> list[Shard]:
    """The first shards, as far as they may be fetched."""
    total, chosen = 0, list[Shard]()
    for shard in shards:
        total += shard.digest.size_bytes
        if total > _MOST_BYTES and chosen:
            break
        chosen.append(shard)
    return chosen


def _collect(
    found: dict[int, list[NDArray[np.uint8]]], images: LabelledImages, per_class: int
) -> None:
    for index, label in enumerate(images.labels.tolist()):
        if label in found and len(found[label]) < per_class:
            found[label].append(as_uint8(images.pixels[index]))


def _png(rows: Sequence[Sequence[NDArray[np.uint8]]], height: int, width: int) -> bytes:
    columns = max((len(row) for row in rows), default=0)
    sheet = Image.new("RGB", (max(1, columns) * width, max(1, len(rows)) * height))
    for y, row in enumerate(rows):
        for x, pixels in enumerate(row):
            tile = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
            sheet.paste(tile.convert("RGB").resize((width, height)), (x * width, y * height))
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()
