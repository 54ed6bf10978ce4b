"""Content on the move, over doubles of the network and of the blob store."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.tasks import UploadState
from hfmds.errors import CorruptData, InvalidInput, NotFound, Unavailable, WrongState
from hfmds.storage.blobs import CHUNK_BYTES, FolderBlobs
from hfmds.storage.staging import Staging
from hfmds.v1 import synthesis_store_pb2 as pb
from hfmds.wire.chunks import (
    MAX_CHUNK_BYTES,
    Content,
    Sender,
    fetch,
    fetch_all,
    outgoing,
    receive,
    split_upload,
    upload_state,
)
from tests.support.waiting import eventually

DATA = bytes(range(256)) * 10
DIGEST = digest_of(DATA)


class MemoryBlobs:
    """Blobs in a dictionary."""

    def __init__(self, *contents: bytes) -> None:
        self._contents = {digest_of(content): content for content in contents}

    def contains(self, digest: Digest) -> bool:
        return digest in self._contents

    def put_bytes(self, data: bytes | memoryview) -> Digest:
        self._contents[digest_of(data)] = bytes(data)
        return digest_of(data)

    def put_file(self, digest: Digest, path: Path) -> None:
        self._contents[digest] = path.read_bytes()
        path.unlink()

    def read(
        self, digest: Digest, offset: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        if digest not in self._contents:
            raise NotFound(f"blob {digest} is not here")
        content = self._contents[digest]
        return (content[at : at + chunk_bytes] for at in range(offset, len(content), chunk_bytes))

    def local_path(self, digest: Digest) -> Path:
        raise NotImplementedError

    def digests(self) -> Iterator[Digest]:
        return iter(self._contents)

    def delete(self, digest: Digest) -> None:
        self._contents.pop(digest, None)

    def verify(self, digest: Digest) -> None:
        assert digest_of(self._contents[digest]) == digest


@pytest.fixture
def here(tmp_path: Path) -> Content:
    """A side that holds nothing yet."""
    return Content(MemoryBlobs(), Staging(tmp_path, max_bytes=1 << 24))


class Network:
    """Brings DATA from an offset on, in chunks of 1000, until it breaks after `lasts` chunks."""

    def __init__(self, data: bytes = DATA, lasts: int = 1000) -> None:
        self._data = data
        self._lasts = lasts
        self.asked_from: list[int] = []

    async def open(self, offset: int) -> AsyncGenerator[bytes, None]:
        self.asked_from.append(offset)
        for number, at in enumerate(range(offset, len(self._data), 1000)):
            if number == self._lasts:
                raise Unavailable("the connection broke")
            yield self._data[at : at + 1000]


async def collected(chunks: AsyncIterator[bytes]) -> list[bytes]:
    return [chunk async for chunk in chunks]


async def stream(*chunks: bytes) -> AsyncGenerator[bytes, None]:
    for chunk in chunks:
        yield chunk


# --- at the client ------------------------------------------------------------------------------


async def test_fetch_brings_content_once(here: Content) -> None:
    network = Network()
    assert await fetch(here, DIGEST, network.open) == len(DATA)
    assert await fetch(here, DIGEST, network.open) == 0
    assert network.asked_from == [0]
    here.blobs.verify(DIGEST)


async def test_fetch_goes_on_where_it_broke_and_counts_each_byte_once(here: Content) -> None:
    with pytest.raises(Unavailable):
        await fetch(here, DIGEST, Network(lasts=2).open)
    network = Network()
    assert await fetch(here, DIGEST, network.open) == len(DATA)
    assert network.asked_from == [2000]
    here.blobs.verify(DIGEST)


async def test_fetch_refuses_altered_content_and_starts_over(here: Content) -> None:
    with pytest.raises(CorruptData):
        await fetch(here, DIGEST, Network(b"x" + DATA[1:]).open)
    network = Network()
    await fetch(here, DIGEST, network.open)
    assert network.asked_from == [0]


async def test_fetch_refuses_a_server_that_sends_too_much_or_too_little(here: Content) -> None:
    with pytest.raises(InvalidInput, match="440 bytes more"):
        await fetch(here, DIGEST, Network(DATA + bytes(1000)).open)
    other = digest_of(DATA[:-1] + b"?")
    with pytest.raises(WrongState, match="2559 of 2560"):
        await fetch(here, other, Network(DATA[:-1]).open)


class ManyShards:
    """Brings blobs one behind the other, in chunks of 1000, and breaks after `lasts` chunks."""

    def __init__(self, blobs: MemoryBlobs, lasts: int = 1000) -> None:
        self._blobs = blobs
        self._lasts = lasts
        self.asked: list[tuple[list[Digest], int]] = []

    async def open(self, digests: Sequence[Digest], offset: int) -> AsyncGenerator[bytes, None]:
        self.asked.append((list(digests), offset))
        data = b"".join(b"".join(self._blobs.read(digest)) for digest in digests)
        async for chunk in Network(data, self._lasts).open(offset):
            yield chunk


PARTS = (DATA[:100], DATA[:1700], b"", DATA, DATA[:1300])
NAMES = [digest_of(part) for part in PARTS]


async def test_many_are_fetched_in_one_stream(here: Content) -> None:
    here.blobs.put_bytes(PARTS[1])
    network = ManyShards(MemoryBlobs(*PARTS))
    fetched = await fetch_all(here, [*NAMES, NAMES[0]], network.open)
    assert fetched == 100 + 0 + len(DATA) + 1300
    assert network.asked == [([NAMES[0], *NAMES[2:]], 0)]
    for name in NAMES:
        here.blobs.verify(name)
    assert await fetch_all(here, NAMES, network.open) == 0
    assert len(network.asked) == 1


async def test_of_more_than_one_request_may_name_each_is_fetched(here: Content) -> None:
    network = ManyShards(MemoryBlobs(*PARTS))
    fetched = await fetch_all(here, NAMES, network.open, most_at_once=2)
    assert fetched == sum(map(len, PARTS))
    assert network.asked == [(NAMES[:2], 0), (NAMES[2:4], 0), (NAMES[4:], 0)]
    for name in NAMES:
        here.blobs.verify(name)


async def test_a_stream_of_many_goes_on_where_it_broke(here: Content) -> None:
    there = MemoryBlobs(*PARTS)
    with pytest.raises(Unavailable):
        await fetch_all(here, NAMES, ManyShards(there, lasts=3).open)
    network = ManyShards(there)
    # 3000 bytes came: the first three blobs and 1200 bytes of the fourth.
    assert await fetch_all(here, NAMES[::-1], network.open) == len(DATA) + 1300
    assert network.asked == [([NAMES[3], NAMES[4]], 1200)]
    for name in NAMES:
        here.blobs.verify(name)


async def test_of_several_that_were_begun_one_goes_on(here: Content) -> None:
    for name, part in zip(NAMES[3:], PARTS[3:], strict=True):
        here.staging.append("fetch", name, 0, part[:200])
    network = ManyShards(MemoryBlobs(*PARTS))
    await fetch_all(here, NAMES, network.open)
    assert network.asked == [([NAMES[3], *NAMES[:3], NAMES[4]], 200)]
    for name in NAMES:
        here.blobs.verify(name)


async def test_of_many_an_altered_one_is_refused_and_those_before_are_kept(here: Content) -> None:
    async def altered(digests: Sequence[Digest], offset: int) -> AsyncGenerator[bytes, None]:
        yield PARTS[0] + b"x" + PARTS[1][1:] + PARTS[3]

    with pytest.raises(CorruptData):
        await fetch_all(here, [NAMES[0], NAMES[1], NAMES[3]], altered)
    assert [here.blobs.contains(name) for name in NAMES] == [True, False, False, False, False]
    network = ManyShards(MemoryBlobs(*PARTS))
    await fetch_all(here, NAMES, network.open)
    assert network.asked == [(NAMES[1:], 0)]


async def test_a_stream_that_ends_too_early_is_refused(here: Content) -> None:
    with pytest.raises(WrongState, match="1699 of 1700"):
        await fetch_all(here, NAMES, lambda *_: stream(PARTS[0] + PARTS[1][:-1]))


class Receiver:
    """A server that holds so much of DATA already and takes the rest."""

    def __init__(self, state: UploadState, breaks: int = 0) -> None:
        self._state = state
        self.breaks = breaks
        self.queries = 0
        self.uploads: list[tuple[int, bytes]] = []

    async def query(self) -> UploadState:
        self.queries += 1
        return self._state

    async def upload(self, offset: int, chunks: AsyncIterator[bytes]) -> str:
        if self.breaks:
            self.breaks -= 1
            raise Unavailable("cut")
        if offset != self._state.offset:
            raise WrongState(f"offset {offset} was sent, {self._state.offset} is next")
        self.uploads.append((offset, b"".join(await collected(chunks))))
        return "taken"


async def sent(sender: Sender, receiver: Receiver) -> str:
    return await sender.send(MemoryBlobs(DATA), DIGEST, receiver.query, receiver.upload)


async def test_what_is_sent_for_the_first_time_is_sent_without_a_question() -> None:
    receiver = Receiver(UploadState(0, complete=False))
    assert await sent(Sender(), receiver) == "taken"
    assert (receiver.uploads, receiver.queries) == ([(0, DATA)], 0)


@pytest.mark.parametrize("held", [1, len(DATA) - 1, len(DATA)])
async def test_a_receiver_that_stands_elsewhere_is_asked_where(held: int) -> None:
    receiver = Receiver(UploadState(held, complete=False))
    assert await sent(Sender(), receiver) == "taken"
    # Also when no byte is lacking: only the upload call makes the content count.
    assert (receiver.uploads, receiver.queries) == ([(held, DATA[held:])], 1)


async def test_after_a_sending_broke_the_receiver_is_asked_first() -> None:
    sender, receiver = Sender(), Receiver(UploadState(7, complete=False), breaks=1)
    with pytest.raises(Unavailable):
        await sent(sender, receiver)
    assert await sent(sender, receiver) == "taken"
    assert (receiver.uploads, receiver.queries) == ([(7, DATA[7:])], 1)
    other = Receiver(UploadState(0, complete=False))  # what has arrived is not broken any more
    assert await sent(sender, other) == "taken"
    assert other.queries == 0


class Replicas(Receiver):
    """Two servers: one is asked how much it holds, and then the other, which holds nothing."""

    async def upload(self, offset: int, chunks: AsyncIterator[bytes]) -> str:
        if offset:
            self._state = UploadState(0, complete=False)
        return await super().upload(offset, chunks)


async def test_sending_begins_anew_where_another_replica_answers() -> None:
    sender, receiver = Sender(), Replicas(UploadState(7, complete=False), breaks=1)
    with pytest.raises(Unavailable):
        await sent(sender, receiver)
    assert await sent(sender, receiver) == "taken"
    assert (receiver.uploads, receiver.queries) == ([(0, DATA)], 2)


# --- at the server ------------------------------------------------------------------------------


async def test_outgoing_is_cut_into_chunks() -> None:
    data = bytes(CHUNK_BYTES + 5)
    chunks = await collected(outgoing(MemoryBlobs(data), digest_of(data), 0))
    assert [len(chunk) for chunk in chunks] == [CHUNK_BYTES, 5]


@pytest.mark.parametrize("offset", [0, 100, len(DATA)])
async def test_outgoing_begins_at_the_offset(offset: int) -> None:
    chunks = await collected(outgoing(MemoryBlobs(DATA), DIGEST, offset))
    assert b"".join(chunks) == DATA[offset:]


@pytest.mark.parametrize("offset", [-1, len(DATA) + 1])
async def test_outgoing_refuses_an_offset_outside(offset: int) -> None:
    with pytest.raises(InvalidInput, match="has no offset"):
        await collected(outgoing(MemoryBlobs(DATA), DIGEST, offset))


async def test_receive_keeps_the_bytes_of_a_broken_upload(here: Content) -> None:
    with pytest.raises(Unavailable):
        await receive(here, "task-1", DIGEST, 0, Network(lasts=1).open(0))
    assert upload_state(here, "task-1", DIGEST) == UploadState(1000, complete=False)
    assert upload_state(here, "task-2", DIGEST) == UploadState(0, complete=False)
    await receive(here, "task-1", DIGEST, 1000, stream(DATA[1000:]))
    assert upload_state(here, "task-1", DIGEST) == UploadState(len(DATA), complete=True)
    here.blobs.verify(DIGEST)


async def test_receive_refuses_a_wrong_offset_and_says_where_it_stands(here: Content) -> None:
    with pytest.raises(Unavailable):
        await receive(here, "task-1", DIGEST, 0, Network(lasts=1).open(0))
    with pytest.raises(WrongState, match="1000 is next"):
        await receive(here, "task-1", DIGEST, 0, stream(DATA))


async def test_receive_takes_no_bytes_of_content_it_has(tmp_path: Path) -> None:
    here = Content(MemoryBlobs(DATA), Staging(tmp_path, max_bytes=1 << 24))
    assert await receive(here, "task-1", DIGEST, 0, stream(b"would not fit"))
    assert list(tmp_path.iterdir()) == []


async def test_content_is_said_to_be_here_when_its_name_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Content(FolderBlobs(tmp_path / "blobs"), Staging(tmp_path, max_bytes=1 << 24))
    here.blobs.put_bytes(DATA)  # by another thread, which may not have come to the sync
    synced: list[Path] = []
    monkeypatch.setattr("hfmds.storage.blobs.sync_folder", synced.append)
    assert await receive(here, "task-1", DIGEST, 0, stream(DATA))
    assert len(synced) == 1
    here.staging.commit("task-1", DIGEST, here.blobs)
    assert len(synced) == 2
    assert upload_state(here, "task-1", DIGEST).complete
    assert len(synced) == 3


async def test_a_stalled_upload_is_written_as_far_as_it_came(here: Content) -> None:
    async def stalled() -> AsyncIterator[bytes]:
        yield DATA[:1000]
        yield DATA[1000:2000]
        await asyncio.Event().wait()

    uploading = asyncio.create_task(receive(here, "task-1", DIGEST, 0, stalled()))
    await eventually(lambda: here.staging.offset("task-1", DIGEST) == 2000)
    uploading.cancel()


# --- the shape of an upload ---------------------------------------------------------------------


async def split(*parts: pb.PutBatchRequest) -> tuple[str, list[bytes]]:
    async def requests() -> AsyncIterator[pb.PutBatchRequest]:
        for part in parts:
            yield part

    header, chunks = await split_upload(requests())
    return header.pool_id, await collected(chunks)


HEADER = pb.PutBatchRequest(header=pb.PutBatchHeader(pool_id="pool-1"))


def chunk(data: bytes) -> pb.PutBatchRequest:
    return pb.PutBatchRequest(data=data)


async def test_an_upload_is_a_header_and_then_chunks() -> None:
    largest = bytes(MAX_CHUNK_BYTES)
    parts = await split(HEADER, chunk(b"a"), chunk(largest))
    assert parts == ("pool-1", [b"a", largest])
    assert await split(HEADER) == ("pool-1", [])


@pytest.mark.parametrize("parts", [(), (chunk(b"a"),), (pb.PutBatchRequest(),)])
async def test_an_upload_without_its_header_is_refused(
    parts: tuple[pb.PutBatchRequest, ...],
) -> None:
    with pytest.raises(InvalidInput, match="header"):
        await split(*parts)


@pytest.mark.parametrize("part", [HEADER, chunk(b""), pb.PutBatchRequest()])
async def test_after_the_header_nothing_but_chunks_with_bytes(part: pb.PutBatchRequest) -> None:
    with pytest.raises(InvalidInput, match="data is missing"):
        await split(HEADER, part)


async def test_a_chunk_above_the_limit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at most 2097152"):
        await split(HEADER, chunk(bytes(MAX_CHUNK_BYTES + 1)))
