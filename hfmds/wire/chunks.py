"""Content moves in chunks: the four directions of it, resumable and verified.

`Content` is where content lives on either side: finished blobs and partial ones. A transfer that
breaks leaves the partial bytes; the next attempt goes on there.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from hfmds.domain.digest import Digest
from hfmds.domain.tasks import UploadState
from hfmds.errors import InvalidInput, Unavailable, WrongState
from hfmds.storage.blobs import CHUNK_BYTES, Blobs, require_offset
from hfmds.storage.staging import Staging

MAX_CHUNK_BYTES = 2 * CHUNK_BYTES
"""What a receiver takes in one message; senders use CHUNK_BYTES."""

MAX_DIGESTS = 20_000
"""How many blobs one request may name."""

_TRIP_BYTES = 4 * CHUNK_BYTES  # of one upload that are worth a trip to a thread
_TRIP_SECONDS = 0.2  # after which less is worth one, too: a kill would lose it
_INTAKE_BYTES = 8 * CHUNK_BYTES  # of one upload that may wait to be written
_ALL_INTAKES_BYTES = 64 * CHUNK_BYTES  # of all; if there are more, none waits

_SENT_AT_ONCE = _TRIP_BYTES // CHUNK_BYTES  # chunks that a sender reads in one trip

_DATA_TAG = b"\x0a"  # field 1, with a length: the data of what is downloaded
_CHUNK_TAG = b"\x12"  # field 2, with a length: the data of what is uploaded


@dataclass(frozen=True, slots=True)
class Content:
    """Blobs that are complete, and the staging folder of those on their way."""

    blobs: Blobs
    staging: Staging


async def outgoing(
    blobs: Blobs, digest: Digest, offset: int, at_once: int = 1
) -> AsyncIterator[bytes]:
    """The chunks of a blob from `offset` on, of which so many are read, and in memory, at once."""
    require_offset(digest, offset)
    chunks = _read(blobs, digest, offset)
    left = digest.size_bytes - offset
    while True:
        # Off the event loop, and in few trips: one costs about as much as to read a chunk.
        some = await asyncio.to_thread(lambda: list(islice(chunks, at_once)))
        left -= sum(map(len, some))
        for chunk in some:
            yield chunk
        if not some or left <= 0:
            return


def _read(blobs: Blobs, digest: Digest, offset: int) -> Iterator[bytes]:
    """As `blobs.read`, which may block, but not before the first chunk is asked for."""
    yield from blobs.read(digest, offset, CHUNK_BYTES)


def download_message(*pieces: bytes) -> bytes:
    """A DownloadShardResponse or DownloadBlobResponse of these pieces, serialised.

    By hand, as the pieces are then copied once and not four times: a fleet fetches gigabytes.
    """
    return _message(_DATA_TAG, pieces)


def upload_message(chunk: bytes) -> bytes:
    """A PutBatchRequest or UploadUpdateRequest with a chunk, serialised by hand as well."""
    return _message(_CHUNK_TAG, (chunk,))


def _message(tag: bytes, pieces: Sequence[bytes]) -> bytes:
    """One with a single field, of which these are the bytes."""
    length, size = sum(map(len, pieces)), bytearray()
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return b"".join((tag, bytes((*size, length)), *pieces))


# --- at the server ------------------------------------------------------------------------------


async def split_upload(
    requests: AsyncIterator[Any],
) -> tuple[Any, AsyncIterator[bytes | memoryview]]:
    """The header an upload begins with, and the chunks behind it."""
    first = await anext(aiter(requests), None)
    if first is None or type(first) is memoryview or first.WhichOneof("part") != "header":
        raise InvalidInput("an upload must begin with its header")
    return first.header, _chunks(requests)


async def _chunks(requests: AsyncIterator[Any]) -> AsyncIterator[bytes | memoryview]:
    async for request in requests:
        data: bytes | memoryview = request if type(request) is memoryview else request.data
        if not data:
            raise InvalidInput("data is missing; after the header of an upload come chunks")
        if len(data) > MAX_CHUNK_BYTES:
            raise InvalidInput(f"data has {len(data)} bytes; at most {MAX_CHUNK_BYTES}")
        yield data


def chunk_decoder(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """What decodes the messages of an upload: chunks by hand, anything else as it is.

    The bytes of a chunk stay where gRPC has put them, and are not copied twice more.
    """

    def decode_by_hand(message: bytes) -> Any:
        return _lone_chunk(_CHUNK_TAG, message) or decode(message)

    return decode_by_hand


def data_decoder(decode: Callable[[bytes], Any]) -> Callable[[bytes], bytes | memoryview]:
    """The same for who downloads: of each response, its data."""

    def decode_by_hand(message: bytes) -> bytes | memoryview:
        found = _lone_chunk(_DATA_TAG, message)
        if found is not None:
            return found
        data: bytes = decode(message).data
        return data

    return decode_by_hand


def _lone_chunk(tag: bytes, message: bytes) -> memoryview | None:
    """The bytes of a message that has nothing but a chunk; None: it has something else."""
    if message[:1] != tag:
        return None
    length = 0
    for at, byte in enumerate(message[1:6]):  # as many as a length below 2^35 takes
        length |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            begin = at + 2
            return memoryview(message)[begin:] if begin + length == len(message) else None
    return None


async def receive(
    content: Content | Callable[[], Content],
    owner: str,
    digest: Digest,
    offset: int,
    chunks: AsyncIterator[bytes | memoryview],
    then: Callable[[], None] = lambda: None,
) -> bool:
    """Take an upload of `owner` from `offset` on; on return it is verified and durable.

    True if it was here before. What says where the content goes, or that it is not wanted, is
    asked in the thread that writes the first bytes; what is to be done `then` is done in the one
    that has written the last.
    """
    intake = _Intake(content, owner, digest, offset, then)
    try:
        async for chunk in chunks:
            await intake.add(chunk)
            if intake.complete:
                break
        else:
            await intake.end()
    except BaseException:  # also when the sender is gone: it will go on where the bytes end
        with suppress(Exception):  # the first error is the one to tell
            await intake.settle()
        raise
    finally:
        intake.close()
    return intake.was_here


class _Intake:
    """Writes an upload while more of it comes.

    In threads, and a trip to one costs as much as to write a chunk, so that one is made for several
    of them: for all that has come by the time that the trip before is over.
    """

    _all_bytes: ClassVar[int] = 0  # that are in memory, of all uploads; counted on the event loop

    def __init__(
        self,
        content: Content | Callable[[], Content],
        owner: str,
        digest: Digest,
        offset: int,
        then: Callable[[], None],
    ) -> None:
        self.complete = False  # the content is here, and no more of it is needed
        self.was_here = False  # before the first byte was written
        self._content = content
        self._owner = owner
        self._digest = digest
        self._offset = offset
        self._then = then
        self._begun: Content | None = None
        self._ended = False
        self._waiting: list[bytes | memoryview] = []
        self._waiting_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._in_time: asyncio.TimerHandle | None = None

    async def add(self, chunk: bytes | memoryview) -> None:
        """Take a chunk; waits when there is much to write, and raises if writing has failed."""
        self._waiting.append(chunk)
        self._waiting_bytes += len(chunk)
        _Intake._all_bytes += len(chunk)
        if self._waiting_bytes >= _TRIP_BYTES:
            self._go_on()
        elif self._in_time is None:
            self._in_time = asyncio.get_running_loop().call_later(_TRIP_SECONDS, self._start)
        if self._waiting_bytes >= _INTAKE_BYTES or _Intake._all_bytes >= _ALL_INTAKES_BYTES:
            await self.settle()

    async def end(self) -> None:
        """Have all of it written, verified and durable."""
        self._ended = True
        await self.settle()

    async def settle(self) -> None:
        """Wait until all that was taken is written."""
        self._go_on()
        if self._writing is not None:
            await asyncio.shield(self._writing)  # whoever hangs up ends the wait, not the writing

    def close(self) -> None:
        """Forget what was not needed, or could not be written."""
        if self._in_time is not None:
            self._in_time.cancel()
        _Intake._all_bytes -= self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0

    def _go_on(self) -> None:
        if self._writing is not None and self._writing.done():
            self._writing.result()  # it has failed, and is not tried again
        self._start()

    def _start(self) -> None:
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())

    async def _write_all(self) -> None:
        if self._in_time is not None:
            self._in_time.cancel()
            self._in_time = None
        while (self._waiting or self._ended) and not self.complete:
            size_bytes, last = self._waiting_bytes, self._ended
            chunks, self._waiting, self._waiting_bytes = self._waiting, [], 0
            try:
                self.complete = await asyncio.to_thread(self._write, chunks, last)
            finally:
                _Intake._all_bytes -= size_bytes
        self._writing = None

    def _write(self, chunks: list[bytes | memoryview], last: bool) -> bool:
        if self._begun is None:
            content = self._content if isinstance(self._content, Content) else self._content()
            self.was_here = content.blobs.confirm(self._digest)
            if self.was_here:
                self._then()
                return True
            self._begun = content
        try:
            self._keep(self._begun.blobs, self._begun.staging, chunks, last)
        except Unavailable:
            self._begun.blobs.free_recycled()  # if the disk is full, for when it is sent again
            raise
        if last:
            self._then()
        return last

    def _keep(
        self, blobs: Blobs, staging: Staging, chunks: list[bytes | memoryview], last: bool
    ) -> None:
        if last and not self._offset and sum(map(len, chunks)) == self._digest.size_bytes:
            staging.take(self._owner, self._digest, chunks, blobs)
            return
        if chunks:
            self._offset = staging.append(self._owner, self._digest, self._offset, *chunks)
        if last:
            staging.commit(self._owner, self._digest, blobs)


def upload_state(content: Content, owner: str, digest: Digest) -> UploadState:
    """Where an upload of `owner` stands."""
    if content.blobs.confirm(digest):
        return UploadState(digest.size_bytes, complete=True)
    return UploadState(content.staging.offset(owner, digest), complete=False)


def require_place(digest: Digest, state: UploadState, offset: int) -> None:
    """WrongState, before any byte is taken, if an upload does not go on where it stands."""
    if offset != state.offset:
        raise WrongState(f"upload {digest}: offset {offset} was sent, {state.offset} is next")


# --- at the client ------------------------------------------------------------------------------


async def fetch(
    content: Content,
    digest: Digest,
    open_stream: Callable[[int], AsyncGenerator[bytes | memoryview, None]],
) -> int:
    """Bring a blob here unless it is here; returns the bytes that crossed the network.

    Those of an attempt that broke before are counted with the one that completes it.
    """
    return await fetch_all(content, [digest], lambda _, offset: open_stream(offset))


async def fetch_all(
    content: Content,
    digests: Sequence[Digest],
    open_stream: Callable[[Sequence[Digest], int], AsyncGenerator[bytes | memoryview, None]],
    most_at_once: int = MAX_DIGESTS,
) -> int:
    """Bring blobs here that are not here; returns the bytes that crossed the network.

    The stream is asked for those that are lacking, from an offset in the first of them on; of more
    than `most_at_once`, several streams one after the other. Each is kept as soon as it is
    complete, so an attempt that breaks is resumed where it broke; what it had completed is not
    counted again.
    """
    fetched = 0
    for start in range(0, len(digests), most_at_once):
        some = digests[start : start + most_at_once]
        arrival = await asyncio.to_thread(_Arrival, content, some)
        if not arrival.lacking:
            continue
        async with aclosing(open_stream(arrival.lacking, arrival.offset)) as chunks:
            async for chunk in chunks:
                await asyncio.to_thread(arrival.take, chunk)
        await asyncio.to_thread(arrival.end)
        fetched += sum(digest.size_bytes for digest in arrival.lacking)
    return fetched


class _Arrival:
    """Takes a stream of blobs apart."""

    _OWNER = "fetch"

    def __init__(self, content: Content, digests: Sequence[Digest]) -> None:
        self._content = content
        absent = [d for d in dict.fromkeys(digests) if not content.blobs.contains(d)]
        begun = [d for d in absent if content.staging.offset(self._OWNER, d)]
        for digest in begun[1:]:  # only the first can be asked for from an offset on
            content.staging.discard(self._OWNER, digest)
        self.lacking = sorted(absent, key=lambda digest: digest not in begun[:1])
        self.offset = content.staging.offset(self._OWNER, begun[0]) if begun else 0
        self._left = iter(self.lacking)
        self._now = next(self._left, None)

    def take(self, chunk: bytes | memoryview) -> None:
        """Keep the next bytes, of one blob or of several."""
        rest = memoryview(chunk)
        while rest:
            self._commit_complete()
            if self._now is None:
                raise InvalidInput(f"{len(rest)} bytes more were sent than were asked for")
            part = rest[: self._now.size_bytes - self.offset]
            self.offset = self._content.staging.append(self._OWNER, self._now, self.offset, part)
            rest = rest[len(part) :]
        self._commit_complete()

    def end(self) -> None:
        """The stream is over; WrongState if it was too early."""
        self._commit_complete()
        if self._now is not None:
            self._content.staging.commit(self._OWNER, self._now, self._content.blobs)

    def _commit_complete(self) -> None:
        while self._now is not None and self.offset == self._now.size_bytes:
            self._content.staging.commit(self._OWNER, self._now, self._content.blobs)
            self._now, self.offset = next(self._left, None), 0


class Sender:
    """Sends blobs to one receiver, which is asked where it stands only if a sending broke before.

    A receiver that stands elsewhere than at the beginning says so anyway.
    """

    def __init__(self) -> None:
        self._broken: set[Digest] = set()

    async def send(
        self,
        blobs: Blobs,
        digest: Digest,
        query: Callable[[], Awaitable[UploadState]],
        upload: Callable[[int, AsyncIterator[bytes]], Awaitable[bool]],
    ) -> int:
        """Send a blob from where the receiver stands; returns the bytes that crossed the network.

        `upload` says whether the receiver had all of it, of which then few have. Those of an
        attempt that broke before are counted with the one that completes it.
        """
        ask = digest in self._broken
        self._broken.add(digest)
        try:
            present = await self._sent(blobs, digest, query if ask else None, upload)
        except WrongState:
            # Where it stands is not where it stood: another replica of the receiver has answered.
            present = await self._sent(blobs, digest, query, upload)
        self._broken.discard(digest)
        return 0 if present else digest.size_bytes

    async def _sent(
        self,
        blobs: Blobs,
        digest: Digest,
        query: Callable[[], Awaitable[UploadState]] | None,
        upload: Callable[[int, AsyncIterator[bytes]], Awaitable[bool]],
    ) -> bool:
        state = await query() if query else UploadState(0, complete=False)
        if state.complete:
            return True
        return await upload(state.offset, outgoing(blobs, digest, state.offset, _SENT_AT_ONCE))
