"""Pictures of a pool for the web page: some images of each class as one PNG, one row per class.

Snapshots are immutable, so the page keeps a picture. It keeps it for a minute only, because the
store may erase the images.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from cachetools import TTLCache
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
_KEPT_PICTURES = 8
_KEPT_SECONDS = 60.0


class SnapshotStore(Protocol):
    """The synthesis store, as far as the web page needs it."""

    async def list_snapshots(self, run_id: str = "") -> tuple[Snapshot, ...]:
        """List the snapshots of a run, newest first, without shards."""

    async def get_snapshot(self, snapshot_id: str) -> Snapshot:
        """Return a snapshot with its shards."""

    async def download_shards(
        self, snapshot_id: str, digests: Sequence[Digest], content: Content
    ) -> int:
        """Download the missing shards; return the bytes that crossed the network."""


@dataclass(frozen=True, slots=True)
class Row:
    """The images of one class."""

    number: int  # of the class
    samples: int  # in the snapshot
    shown: int


@dataclass(frozen=True, slots=True)
class Picture:
    """Images of a snapshot as tiles without gaps, one row per class."""

    snapshot: Snapshot
    rows: tuple[Row, ...]
    tile_width: int
    tile_height: int
    png: bytes


class Gallery:
    """Draws pictures of snapshots. Use it on one event loop."""

    def __init__(self, store: SnapshotStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._drawing = asyncio.Lock()  # one picture at a time
        self._pictures: TTLCache[str, Picture] = TTLCache(
            _KEPT_PICTURES, _KEPT_SECONDS, timer=clock
        )

    async def picture(self, run_id: str, snapshot_id: str) -> Picture:
        """Return the picture of a snapshot of this run."""
        async with self._drawing:
            picture = self._pictures.get(snapshot_id)
            if picture is None:
                picture = self._pictures[snapshot_id] = await self._draw(snapshot_id)
        if picture.snapshot.spec.run_id != run_id:
            raise NotFound(f"run {run_id!r} has no snapshot {snapshot_id!r}")
        return picture

    async def _draw(self, snapshot_id: str) -> Picture:
        snapshot = await self._store.get_snapshot(snapshot_id)
        spec, histogram = snapshot.spec.model, snapshot.class_histogram
        if spec.channels not in (1, 3):
            raise InvalidInput(
                f"the page cannot show images of {spec.channels} channels; save them with "
                f"`hfmds snapshots export`"
            )
        classes = [number for number, samples in enumerate(histogram) if samples][:MOST_CLASSES]
        height, width = min(spec.height, _TILE), min(spec.width, _TILE)
        room = _MOST_PIXELS // (height * width * max(1, len(classes)))
        per_class = max(1, min(PER_CLASS, room))
        images: dict[int, list[NDArray[np.uint8]]] = {number: [] for number in classes}
        shards = _affordable(shards_with(snapshot.shards, classes, per_class))
        async for _, batch in download_shards(self._store, snapshot, shards):
            _collect(images, batch.images, per_class)
        rows = tuple(Row(c, histogram[c], len(images[c])) for c in classes)
        png = await asyncio.to_thread(_png, list(images.values()), height, width)
        return Picture(snapshot, rows, width, height, png)


def _affordable(shards: Sequence[Shard]) -> list[Shard]:
    """Return the first shards that fit into the limit of bytes."""
    total, chosen = 0, list[Shard]()
    for shard in shards:
        total += shard.digest.size_bytes
        if total > _MOST_BYTES and chosen:
            break
        chosen.append(shard)
    return chosen


def _collect(
    images: dict[int, list[NDArray[np.uint8]]], batch: LabelledImages, per_class: int
) -> None:
    for index, label in enumerate(batch.labels.tolist()):
        if label in images and len(images[label]) < per_class:
            images[label].append(as_uint8(batch.pixels[index]))


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
