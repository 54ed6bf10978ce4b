"""Transfers with wrong pieces, from senders that break off, lie or restart."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmds.domain.digest import Digest, digest_of
from hfmds.errors import HfmdsError
from hfmds.storage.staging import Staging
from hfmds.v1 import coordinator_pb2, synthesis_store_pb2
from hfmds.wire.chunks import Content, fetch_all, receive, split_upload, upload_state
from tests.fuzz.budget import tried
from tests.fuzz.protobuf import anything
from tests.wire.test_chunks import MemoryBlobs

CONTENT = bytes(range(100))
DIGEST = digest_of(CONTENT)
LARGEST = 200

_offsets = st.integers(0, 100) | st.sampled_from((-1, 101, 2**31, 2**63 - 1, -(2**63)))
_chunks = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 100)).map(lambda ends: CONTENT[slice(*ends)])
    | st.binary(min_size=1, max_size=20),
    max_size=4,
)
_digests = st.sampled_from(
    (DIGEST, DIGEST, Digest(DIGEST.sha256, 99), Digest("0" * 64, 100), Digest("0" * 64, 2**40))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("staging")


def empty(folder: Path) -> Content:
    shutil.rmtree(folder, ignore_errors=True)
    return Content(MemoryBlobs(), Staging(folder, LARGEST))


async def stream(items: Sequence[Any]) -> AsyncGenerator[Any, None]:
    for item in items:
        yield item


def staged_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@tried(40)
@given(attempts=st.lists(st.tuples(_digests, _offsets, _chunks), max_size=4))
async def test_an_honest_upload_arrives_after_any_earlier_calls(
    folder: Path, attempts: list[tuple[Digest, int, list[bytes]]]
) -> None:
    content = empty(folder)
    for digest, offset, chunks in attempts:
        with suppress(HfmdsError):
            await receive(content, "task", digest, offset, stream(chunks))
        assert staged_bytes(folder) <= len({digest for digest, _, _ in attempts}) * LARGEST
    for _ in range(2):  # the first upload reveals wrong bytes
        state = upload_state(content, "task", DIGEST)
        if not state.complete:
            with suppress(HfmdsError):
                rest = stream([CONTENT[state.offset :]])
                await receive(content, "task", DIGEST, state.offset, rest)
    assert content.blobs.contains(DIGEST)
    for digest in content.blobs.digests():
        assert digest_of(b"".join(content.blobs.read(digest))) == digest


@pytest.mark.parametrize(
    "kind", [coordinator_pb2.SubmitUpdateRequest, synthesis_store_pb2.PutBatchRequest]
)
@tried(40)
@given(data=st.data())
async def test_malformed_uploads_are_refused(kind: type[Any], data: st.DataObject) -> None:
    messages = data.draw(st.lists(anything(kind), max_size=4))
    with suppress(HfmdsError):
        header, chunks = await split_upload(stream(messages))
        assert header == messages[0].header
        received = [bytes(chunk) async for chunk in chunks]
        assert received == [message.data for message in messages[1:]]


@tried(60)
@given(
    sizes=st.lists(st.integers(0, 60), max_size=4),
    sent=st.lists(st.binary(max_size=70), max_size=5),
    honest=st.booleans(),
    pieces=st.integers(1, 50),
)
async def test_downloads_give_the_requested_bytes_or_an_error(
    folder: Path, sizes: list[int], sent: list[bytes], honest: bool, pieces: int
) -> None:
    content = empty(folder)
    contents = [bytes([at + 1]) * size for at, size in enumerate(sizes)]
    digests = [digest_of(content) for content in contents]
    by_digest = dict(zip(digests, contents, strict=True))

    async def answer(lacking: Sequence[Digest], offset: int) -> AsyncGenerator[bytes, None]:
        missing = b"".join(by_digest[digest] for digest in lacking)[offset:]
        cut = [missing[at : at + pieces] for at in range(0, len(missing), pieces)]
        for chunk in cut if honest else sent:
            yield chunk

    try:
        await fetch_all(content, digests, answer)
    except HfmdsError:
        assert not honest
    else:
        assert all(content.blobs.contains(digest) for digest in digests)
    for digest in content.blobs.digests():
        assert digest_of(b"".join(content.blobs.read(digest))) == digest
    assert staged_bytes(folder) <= LARGEST
