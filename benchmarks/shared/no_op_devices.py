"""Devices that return the weights they got: a round without the learning.

Many devices live in one process, each with its own connection, and call the coordinator as the
edge client does. Content stays in memory, so that only the coordinator uses the disk. They share
two processors with the coordinator, so they use no threads and hash common content once.

Each device changes one number of the weights. Otherwise the coordinator would recognise the bytes
by their digest, and nothing would travel.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import grpc

from hfmds.domain.devices import DeviceProfile
from hfmds.domain.digest import Digest
from hfmds.domain.learning import Traffic
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import RunSpec
from hfmds.domain.tasks import Assignment, Finished, RetryLater, UpdateReport
from hfmds.errors import HfmdsError, TooLate, Unavailable
from hfmds.service.client.peer import Peer
from hfmds.storage.blobs import CHUNK_BYTES
from hfmds.wire.chunks import Content
from hfmds.wire.clients.admin_client import AdminClient
from hfmds.wire.clients.coordinator_client import CoordinatorClient

PAPER_CNN = ModelSpec()
PROFILE = DeviceProfile(samples=100, software_version="benchmark", engine="none")
CHANNEL_OPTIONS = (
    # gRPC lets all channels of a process share one connection; real devices have one each.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
)
Piece: TypeAlias = bytes | memoryview
_WAIT_SECONDS = 30.0
_AWAY_PAUSE_SECONDS = 0.02


class OwnConnection(CoordinatorClient):
    """A client with its own connection and without gRPC's retries."""

    def __init__(self, peer: Peer, device_id: str) -> None:
        super().__init__(peer, device_id)
        options = (*CHANNEL_OPTIONS, ("grpc.enable_retries", 0))
        self._use(grpc.aio.insecure_channel(peer.address, options=options))


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """The times at which a device finished each step, by the monotonic clock."""

    round_number: int
    assigned: float
    downloaded: float
    made: float
    accepted: float
    received_bytes: int


class MemoryContent:
    """Blobs and staging at once, in memory: what `Content` wants of either.

    Content stays in the pieces it came in, as in loopback_copy.py: on this machine, what devices
    do takes processors from the coordinator.
    """

    def __init__(self) -> None:
        self._blobs: dict[Digest, list[Piece]] = {}
        self._partial: dict[Digest, list[Piece]] = {}

    def contains(self, digest: Digest) -> bool:
        return digest in self._blobs

    def keep(self, digest: Digest, pieces: list[Piece]) -> None:
        """Keep content that was made here."""
        self._blobs[digest] = pieces

    def take(self, digest: Digest) -> list[Piece]:
        """Return content and forget it."""
        return self._blobs.pop(digest)

    def read(
        self, digest: Digest, offset: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        if offset == 0 and max(map(len, self._blobs[digest])) <= chunk_bytes:
            return map(bytes, self._blobs[digest])  # protobuf takes no views
        content = b"".join(self._blobs[digest])
        return (content[at : at + chunk_bytes] for at in range(offset, len(content), chunk_bytes))

    def offset(self, owner: str, digest: Digest) -> int:
        return sum(map(len, self._partial.get(digest, ())))

    def append(self, owner: str, digest: Digest, offset: int, *pieces: Piece) -> int:
        self._partial.setdefault(digest, []).extend(pieces)
        return self.offset(owner, digest)

    def commit(self, owner: str, digest: Digest, blobs: object) -> None:
        self._blobs[digest] = self._partial.pop(digest)


class NoOpDevice:
    """One device; it calls `on_task` for accepted tasks and `on_answer` for answered calls."""

    _hashed: ClassVar[tuple[Digest, Any] | None] = None  # a model, without its end

    def __init__(
        self,
        peer: Peer,
        number: int,
        on_task: Callable[[TaskTimes], None],
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._number = number
        self._client = OwnConnection(peer, f"device-{number:05}")
        self._memory = MemoryContent()
        self._on_task = on_task
        self._on_answer = on_answer

    async def run(self, run_id: str) -> None:
        """Work until the run has ended, and wait for a coordinator that is away."""
        try:
            while not await self._work(run_id):
                pass
        finally:
            await self._client.close()

    async def _work(self, run_id: str) -> bool:
        """Check in once and do the task; return true if the run has ended."""
        try:
            match await self._client.check_in(PROFILE, _WAIT_SECONDS, run_id):
                case Assignment() as task:
                    self._on_answer()
                    self._on_task(await self._do(task))
                case RetryLater(after_seconds):
                    self._on_answer()
                    await asyncio.sleep(after_seconds)
                case Finished():
                    return True
        except TooLate:
            pass
        except HfmdsError as error:
            # A bare HfmdsError is INTERNAL: it must not pass for an absence, nor end the others.
            if not isinstance(error, Unavailable):
                raise
            await asyncio.sleep(_AWAY_PAUSE_SECONDS)
        return False

    async def _do(self, task: Assignment) -> TaskTimes:
        client, memory = self._client, self._memory
        content = Content(memory, memory)  # type: ignore[arg-type]
        assigned = time.monotonic()
        received = await client.download(task.task_id, task.weights, content)
        downloaded = time.monotonic()
        update = self._changed(task)
        made = time.monotonic()
        traffic = Traffic(received, update.size_bytes)
        report = UpdateReport(update, PROFILE.samples, 0.0, traffic, 0.0)
        await client.submit_update(task.task_id, report, memory)  # type: ignore[arg-type]
        memory.take(update)
        self._on_answer()
        return TaskTimes(
            task.round_number,
            assigned,
            downloaded,
            made,
            time.monotonic(),
            received,
        )

    def _changed(self, task: Assignment) -> Digest:
        """Return the weights with a last number of this device and round."""
        pieces = self._memory.take(task.weights)
        number = struct.pack("<f", 1e-3 * self._number + 1e-6 * task.round_number)
        pieces[-1] = bytes(pieces[-1][: -len(number)]) + number
        update = self._digest(task.weights, pieces, number)
        self._memory.keep(update, pieces)
        return update

    @classmethod
    def _digest(cls, model: Digest, pieces: list[Piece], end: bytes) -> Digest:
        """Hash the weights, which equal the model except for their end."""
        if cls._hashed is None or cls._hashed[0] != model:
            *but_last, last = pieces
            cls._hashed = model, hashlib.sha256(b"".join([*but_last, last[: -len(end)]]))
        sha256 = cls._hashed[1].copy()
        sha256.update(end)
        return Digest(sha256.hexdigest(), model.size_bytes)


class InPlace(ThreadPoolExecutor):
    """Does at once what is given to a thread: nothing here blocks.

    The event loop takes its own kind of future as it is, and has no other to be woken by.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  # the waiting caller gets it
            future.set_exception(error)
        return future


def no_op_run(devices: int, rounds: int, model: ModelSpec = PAPER_CNN) -> RunSpec:
    """Specify a FedAvg run in which all devices take part in every round."""
    normalisation = Normalisation((0.5,) * model.channels, (0.25,) * model.channels)
    recipe = Recipe(model, normalisation, rounds=rounds, cohort_size=devices)
    return RunSpec(recipe, RoundPolicy(minimum_devices=devices))


async def run_rounds(
    peer: Peer,
    run_id: str,
    spec: RunSpec,
    on_task: Callable[[TaskTimes], None] = lambda times: None,
) -> list[TaskTimes]:
    """Create the run and act as its devices; return the times of all tasks."""
    asyncio.get_running_loop().set_default_executor(InPlace())
    admin = AdminClient(peer)
    all_times: list[TaskTimes] = []

    def note(times: TaskTimes) -> None:
        all_times.append(times)
        on_task(times)

    try:
        await admin.create_run(spec, run_id)
        devices = [NoOpDevice(peer, number, note) for number in range(spec.recipe.cohort_size)]
        await asyncio.gather(*(device.run(run_id) for device in devices))
        return all_times
    finally:
        await admin.close()
