"""Moves content in chunks: resumable, verified, in both directions.

A server sends content with `outgoing` and takes it with `receive`. A client fetches it with
`fetch_all` and sends it with `Sender`. A broken transfer leaves its partial bytes in staging, and
the next attempt resumes there.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from hfmds.domain.digest import Digest
from hfmds.domain.tasks import UploadState
from hfmds.errors import InvalidInput, WrongState
from hfmds.storage.blobs import CHUNK_BYTES, Blobs, require_offset
from hfmds.storage.staging import Staging

R = TypeVar("R")

MAX_CHUNK_BYTES = 2 * CHUNK_BYTES
"""The largest chunk that a receiver takes; senders use CHUNK_BYTES."""

_READ_AT_ONCE = 4  # chunks in one trip to a thread

MAX_DIGESTS = 20_000
"""How many blobs one request may name."""


@dataclass(frozen=True, slots=True)
class Content:
    """Complete blobs, and the staging folder of partial ones."""

    blobs: Blobs
    staging: Staging


async def outgoing(blobs: Blobs, digest: Digest, offset: int) -> AsyncIterator[bytes]:
    """Yield the chunks of a blob from `offset` on, with a few chunks in memory at a time."""
    require_offset(digest, offset)
    chunks, batch = await asyncio.to_thread(_open_chunks, blobs, digest, offset)
    while batch:
        for chunk in batch:
            yield chunk
            offset += len(chunk)
        more = offset < digest.size_bytes
        batch = await asyncio.to_thread(_next_chunks, chunks) if more else []


def _open_chunks(blobs: Blobs, digest: Digest, offset: int) -> tuple[Iterator[bytes], list[bytes]]:
    chunks = blobs.read(digest, offset, CHUNK_BYTES)
    return chunks, _next_chunks(chunks)


def _next_chunks(chunks: Iterator[bytes]) -> list[bytes]:
    return list(itertools.islice(chunks, _READ_AT_ONCE))


# --- at the server ------------------------------------------------------------------------------


async def split_upload(requests: AsyncIterator[Any]) -> tuple[Any, AsyncIterator[bytes]]:
    """Split an upload's messages into its header and the chunks that follow."""
    first = await anext(aiter(requests), None)
    if first is None or first.WhichOneof("part") != "header":
        raise InvalidInput("an upload must begin with its header")
    return first.header, _chunks(requests)


async def _chunks(requests: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for request in requests:
        data = request.data  # protobuf copies the bytes each time
        if not data:
            raise InvalidInput("data is missing; after the header of an upload come chunks")
        if len(data) > MAX_CHUNK_BYTES:
            raise InvalidInput(f"data has {len(data)} bytes; at most {MAX_CHUNK_BYTES}")
        yield data


async def receive(
    content: Content, owner: str, digest: Digest, offset: int, chunks: AsyncIterator[bytes]
) -> bool:
    """Take an upload of `owner` from `offset` on; on return it is verified and durable.

    Returns True, without reading any chunk, if the blob is already here.
    """
    if await asyncio.to_thread(content.blobs.contains, digest):
        return True
    async for chunk in chunks:
        offset = await asyncio.to_thread(content.staging.append, owner, digest, offset, chunk)
    await asyncio.to_thread(content.staging.commit, owner, digest, content.blobs)
    return False


def upload_state(content: Content, owner: str, digest: Digest) -> UploadState:
    """Report how much of an upload of `owner` is here."""
    if content.blobs.contains(digest):
        return UploadState(digest.size_bytes, complete=True)
    return UploadState(content.staging.offset(owner, digest), complete=False)


def require_place(digest: Digest, state: UploadState, offset: int) -> None:
    """Raise WrongState if an upload does not resume where it stands."""
    if offset != state.offset:
        raise WrongState(f"upload {digest}: offset {offset} was sent, {state.offset} is next")


# --- at the client ------------------------------------------------------------------------------


async def fetch(
    content: Content,
    digest: Digest,
    open_stream: Callable[[int], AsyncGenerator[bytes, None]],
) -> int:
    """Fetch a blob unless it is here; return the bytes that crossed the network.

    The attempt that completes a blob also counts the bytes of its broken predecessors.
    """
    return await fetch_all(content, [digest], lambda _, offset: open_stream(offset))


async def fetch_all(
    content: Content,
    digests: Sequence[Digest],
    open_stream: Callable[[Sequence[Digest], int], AsyncGenerator[bytes, None]],
    most_at_once: int = MAX_DIGESTS,
) -> int:
    """Fetch the blobs that are not here; return the bytes that crossed the network.

    `open_stream` opens a stream of the named blobs, from an offset in the first of them on. One
    stream carries at most `most_at_once` blobs. Each blob is stored as soon as it is complete, so
    the next attempt resumes where this one breaks. It does not count completed blobs again.
    """
    fetched_bytes = 0
    for start in range(0, len(digests), most_at_once):
        arrival = await asyncio.to_thread(_Arrival, content, digests[start : start + most_at_once])
        if not arrival.lacking:
            continue
        async with aclosing(open_stream(arrival.lacking, arrival.offset)) as chunks:
            async for chunk in chunks:
                await asyncio.to_thread(arrival.take, chunk)
        await asyncio.to_thread(arrival.end)
        fetched_bytes += sum(digest.size_bytes for digest in arrival.lacking)
    return fetched_bytes


class _Arrival:
    """Splits a stream into the blobs that it carries."""

    _OWNER = "fetch"

    def __init__(self, content: Content, digests: Sequence[Digest]) -> None:
        self._content = content
        absent = [d for d in dict.fromkeys(digests) if not content.blobs.contains(d)]
        begun = [d for d in absent if content.staging.offset(self._OWNER, d)]
        for digest in begun[1:]:  # a stream has one offset, that of its first blob
            content.staging.discard(self._OWNER, digest)
        self.lacking = sorted(absent, key=lambda digest: digest not in begun[:1])
        self.offset = content.staging.offset(self._OWNER, begun[0]) if begun else 0
        self._remaining = iter(self.lacking)
        self._current = next(self._remaining, None)

    def take(self, chunk: bytes) -> None:
        """Store the next bytes, of one blob or of several."""
        rest = memoryview(chunk)
        while rest:
            self._commit_complete()
            if self._current is None:
                raise InvalidInput(f"{len(rest)} bytes more were sent than were requested")
            part = rest[: self._current.size_bytes - self.offset]
            staging = self._content.staging
            self.offset = staging.append(self._OWNER, self._current, self.offset, part)
            rest = rest[len(part) :]
        self._commit_complete()

    def end(self) -> None:
        """Finish the stream; raises WrongState if it ended too early."""
        self._commit_complete()
        if self._current is not None:
            self._content.staging.commit(self._OWNER, self._current, self._content.blobs)

    def _commit_complete(self) -> None:
        while self._current is not None and self.offset == self._current.size_bytes:
            self._content.staging.commit(self._OWNER, self._current, self._content.blobs)
            self._current, self.offset = next(self._remaining, None), 0


class Sender:
    """Sends blobs to one receiver and resumes a broken upload where the receiver stands."""

    def __init__(self) -> None:
        self._broken: set[Digest] = set()

    async def send(
        self,
        blobs: Blobs,
        digest: Digest,
        query: Callable[[], Awaitable[UploadState]],
        upload: Callable[[int, AsyncIterator[bytes]], Awaitable[R]],
    ) -> R:
        """Send a blob with `upload` and return its answer.

        `query` asks the receiver where the upload stands. The first attempt starts at 0 without
        asking.
        """
        offset = (await query()).offset if digest in self._broken else 0
        self._broken.add(digest)
        try:
            answer = await upload(offset, outgoing(blobs, digest, offset))
        except WrongState:  # the receiver stands elsewhere, or it is another replica
            offset = (await query()).offset
            answer = await upload(offset, outgoing(blobs, digest, offset))
        self._broken.discard(digest)
        return answer
