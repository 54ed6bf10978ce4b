"""A web page of a coordinator, and a snapshot store in memory, for tests."""

from __future__ import annotations

import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from coordinator.web.json_api import JsonApi
from coordinator.web.page_access import FindAdmin, PageAccess
from coordinator.web.page_server import WebServer
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.histograms import histograms_of
from hfmds.domain.learning import LabelledImages, SyntheticBatch
from hfmds.domain.pools import PoolSpec, Shard, Snapshot
from hfmds.domain.recipe import ModelSpec
from hfmds.errors import NotFound, Unavailable
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.security.tls import TlsFiles
from hfmds.wire.chunks import Content
from hfmds.wire.tensors import encode_batch
from tests.coordinator.workbench import LEAKAGE, MODEL, Workbench, workbench

MOMENT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


def batch_of(
    labels: Sequence[int], grey: Sequence[int], model: ModelSpec = MODEL
) -> SyntheticBatch:
    """Make images of one grey each, with the same measured leakage."""
    levels = np.array(grey, np.uint8).reshape(-1, 1, 1, 1)
    images = LabelledImages(
        np.broadcast_to(levels, (len(grey), *model.image_shape)).copy(), np.array(labels, np.int64)
    )
    psnr, ssim = np.full(len(grey), 9.0, np.float32), np.full(len(grey), 0.125, np.float32)
    return SyntheticBatch(images, psnr, psnr, ssim, ssim)


class SnapshotsInMemory:
    """A snapshot store that may be away."""

    def __init__(self) -> None:
        self.away = False
        self.downloads = 0
        self._snapshots: dict[str, Snapshot] = {}
        self._shards: dict[Digest, bytes] = {}

    def seal(self, snapshot_id: str, run_id: str, *batches: SyntheticBatch) -> None:
        """Add a snapshot of these batches, one shard each."""
        model = replace(MODEL, channels=batches[0].images.pixels.shape[1])
        labels = np.concatenate([batch.images.labels for batch in batches])
        shards, histograms = [], histograms_of(batches[0])
        for batch in batches[1:]:
            histograms += histograms_of(batch)
        for batch in batches:
            data = encode_batch(batch)
            counts = Counter(batch.images.labels.tolist())
            self._shards[digest_of(data)] = data
            shards.append(Shard(digest_of(data), len(batch), "someone", counts, 1))
        self._snapshots[snapshot_id] = Snapshot(
            snapshot_id=snapshot_id,
            pool_id="pool",
            spec=PoolSpec(run_id, 1, digest_of(b"w"), model, 100, "hfmds"),
            samples=len(labels),
            class_histogram=tuple(np.bincount(labels, minlength=3).tolist()),
            duplicates=0,
            leakage=LEAKAGE,
            sealed_at=MOMENT,
            size_bytes=1,
            histograms=histograms,
            shards=tuple(shards),
        )

    async def list_snapshots(self, run_id: str = "") -> tuple[Snapshot, ...]:
        self._answer()
        return tuple(s for s in self._snapshots.values() if s.spec.run_id == run_id)

    async def get_snapshot(self, snapshot_id: str) -> Snapshot:
        self._answer()
        if snapshot_id not in self._snapshots:
            raise NotFound(f"there is no snapshot {snapshot_id!r}")
        return self._snapshots[snapshot_id]

    async def download_shards(
        self, snapshot_id: str, digests: Sequence[Digest], content: Content
    ) -> int:
        self._answer()
        self.downloads += 1
        for digest in digests:
            content.blobs.put_bytes(self._shards[digest])
        return sum(digest.size_bytes for digest in digests)

    def _answer(self) -> None:
        if self.away:
            raise Unavailable("the synthesis store is away")


class Clock:
    """The real time, or a later one."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_seconds


@dataclass
class WebBench:
    """A coordinator with its page, and an HTTP client."""

    bench: Workbench
    snapshots: SnapshotsInMemory
    server: WebServer
    client: aiohttp.ClientSession
    clock: Clock
    gate: Gate

    async def get(self, path: str, **options: Any) -> Any:
        """Return the JSON of a successful answer."""
        async with self.client.get(path, **options) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def refused(self, path: str, **options: Any) -> tuple[int, str]:
        """Return the status and the reason of a refusal."""
        async with self.client.get(path, allow_redirects=False, **options) as answer:
            return answer.status, (await answer.json())["error"]


@asynccontextmanager
async def web_bench(
    folder: Path,
    *,
    client_tls: ssl.SSLContext | None = None,
    gate: Gate | None = None,
    tls: TlsFiles | None = None,
    find_admin: FindAdmin | None = None,
    idle_seconds: float = 15.0,
) -> AsyncIterator[WebBench]:
    """Serve the page on a free port of this machine."""
    async with workbench(folder) as bench:
        snapshots, clock = SnapshotsInMemory(), Clock()
        gate = gate or Gate(clock)
        listen = "127.0.0.1:0"
        access = PageAccess(listen, tls, find_admin, gate, clock)
        api = JsonApi(bench.runs, bench.overview, snapshots, access, clock)
        server = WebServer(listen, tls, access, api, idle_seconds)
        async with (
            server.serving(),
            aiohttp.ClientSession(
                server.address,
                connector=aiohttp.TCPConnector(ssl=client_tls or True),
                cookie_jar=aiohttp.CookieJar(unsafe=True),  # the host is a number
            ) as client,
        ):
            yield WebBench(bench, snapshots, server, client, clock, gate)
