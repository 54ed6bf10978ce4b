"""What a device needs of its two peers: protocols between the agent and the network.

The clients in `hfmds.wire.clients` implement them. `protos/hfmds/v1` describes each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edge_client.retry import Retry
from hfmds.domain.devices import DeviceProfile
from hfmds.domain.digest import Digest
from hfmds.domain.pools import SharedShard
from hfmds.domain.tasks import (
    Assignment,
    EvaluationReport,
    FailureCause,
    Finished,
    RetryLater,
    SynthesisReport,
    TaskStage,
    UnreadableTask,
    UpdateReport,
)
from hfmds.storage.blobs import Blobs
from hfmds.wire.chunks import Content


class Coordinator(Protocol):
    """The coordinator's calls for one device."""

    async def check_in(
        self, profile: DeviceProfile, wait_seconds: float, run_id: str = ""
    ) -> Assignment | UnreadableTask | RetryLater | Finished: ...

    async def renew_lease(self, task_id: str, stage: TaskStage | None = None) -> float: ...

    async def download(self, task_id: str, digest: Digest, content: Content) -> int: ...

    async def submit_update(self, task_id: str, report: UpdateReport, blobs: Blobs) -> bool: ...

    async def submit_synthesis(self, task_id: str, report: SynthesisReport) -> bool: ...

    async def submit_evaluation(self, task_id: str, report: EvaluationReport) -> bool: ...

    async def report_failure(self, task_id: str, reason: str, cause: FailureCause) -> None: ...

    async def leave(self) -> None: ...


class Store(Protocol):
    """The synthesis store's calls for a device."""

    async def get_share(
        self, snapshot_id: str, *, max_bytes: int, balanced: bool, seed: int
    ) -> tuple[SharedShard, ...]: ...

    async def download_shards(
        self, snapshot_id: str, digests: Sequence[Digest], content: Content
    ) -> int: ...

    async def put_batch(
        self, pool_id: str, device_id: str, batch: Digest, blobs: Blobs, weights: Digest
    ) -> int: ...


@dataclass(frozen=True, slots=True)
class Peers:
    """The two services, each with its retries."""

    coordinator: Coordinator
    coordinator_retry: Retry
    store: Store
    store_retry: Retry
