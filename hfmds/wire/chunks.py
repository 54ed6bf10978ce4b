"""Content moves in chunks: the four directions of it, resumable and verified.

`Content` is where content lives on either side: finished blobs and partial ones. A transfer that
breaks leaves the partial bytes; the next attempt goes on there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from hfmds.digest import Digest
from hfmds.errors import InvalidInput, WrongState
from hfmds.storage.blobs import CHUNK_BYTES, Blobs
from hfmds.storage.staging import Staging
from hfmds.wire.types import UploadState

MAX_CHUNK_BYTES = 2 * CHUNK_BYTES
"""What a receiver takes in one message; senders use CHUNK_BYTES."""


@dataclass(frozen=True, slots=True)
class Content:
    """Blobs that are complete, and the staging folder of those on their way."""

    blobs: Blobs
    staging: Staging


async def outgoing(blobs: Blobs, digest: Digest, offset: int) -> AsyncIterator[bytes]:
    """The chunks of a blob from `offset` on, read off the event loop."""
    if not 0 <= offset <= digest.size_bytes:
        raise InvalidInput(f"offset {offset} is outside content {digest}")

    def begin() -> tuple[Iterator[bytes], bytes]:
        chunks = blobs.read(digest, offset, CHUNK_BYTES)
        return chunks, next(chunks, b"")

    # As few trips to a thread as chunks: each costs about as much as reading one.
    chunks, chunk = await asyncio.to_thread(begin)
    while chunk:
        yield chunk
        offset += len(chunk)
        if offset >= digest.size_bytes:
            return
        chunk = await asyncio.to_thread(next, chunks, b"")


# --- at the server ------------------------------------------------------------------------------


async def split_upload(requests: AsyncIterator[Any]) -> tuple[Any, AsyncIterator[bytes]]:
    """The header an upload begins with, and the chunks behind it."""
    first = await anext(aiter(requests), None)
    if first is None or first.WhichOneof("part") != "header":
        raise InvalidInput("an upload must begin with its header")
    return first.header, _chunks(requests)


async def _chunks(requests: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for request in requests:
        data: bytes = request.data  # asked for once: each time is a copy
        name = request.DESCRIPTOR.name
        if not data:
            raise InvalidInput(f"{name}.data is missing; after the header come chunks")
        if len(data) > MAX_CHUNK_BYTES:
            raise InvalidInput(f"{name}.data has {len(data)} bytes; at most {MAX_CHUNK_BYTES}")
        yield data


async def receive(
    content: Content, owner: str, digest: Digest, offset: int, chunks: AsyncIterator[bytes]
) -> None:
    """Take an upload of `owner` from `offset` on; on return it is verified and durable."""
    if await asyncio.to_thread(content.blobs.contains, digest):
        return
    async for chunk in chunks:
        offset = await asyncio.to_thread(content.staging.append, owner, digest, offset, chunk)
    await asyncio.to_thread(content.staging.commit, owner, digest, content.blobs)


def upload_state(content: Content, owner: str, digest: Digest) -> UploadState:
    """Where an upload of `owner` stands."""
    if content.blobs.contains(digest):
        return UploadState(digest.size_bytes, complete=True)
    return UploadState(content.staging.offset(owner, digest), complete=False)


# --- at the client ------------------------------------------------------------------------------


async def fetch(
    content: Content, digest: Digest, open_stream: Callable[[int], AsyncGenerator[bytes, None]]
) -> int:
    """Bring a blob here unless it is here; returns the bytes that crossed the network.

    Those of an attempt that broke before are counted with the one that completes it.
    """
    if content.blobs.contains(digest):
        return 0
    owner = "fetch"
    offset = content.staging.offset(owner, digest)
    async with aclosing(open_stream(offset)) as chunks:
        async for chunk in chunks:
            offset = await asyncio.to_thread(content.staging.append, owner, digest, offset, chunk)
    await asyncio.to_thread(content.staging.commit, owner, digest, content.blobs)
    return digest.size_bytes


async def send(
    blobs: Blobs,
    digest: Digest,
    query: Callable[[], Awaitable[UploadState]],
    upload: Callable[[int, AsyncIterator[bytes]], Awaitable[None]],
) -> int:
    """Send a blob from where the receiver stands; returns the bytes that crossed the network.

    Those of an attempt that broke before are counted with the one that completes it.
    """
    state = await query()
    if state.complete:
        return 0
    try:
        await upload(state.offset, outgoing(blobs, digest, state.offset))
    except WrongState:
        # Where it stands is not where it stood: another replica of the receiver has answered.
        state = await query()
        if state.complete:
            return 0
        await upload(state.offset, outgoing(blobs, digest, state.offset))
    return digest.size_bytes
