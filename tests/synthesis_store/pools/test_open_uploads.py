"""Uploads that devices do not complete: they leave with their bytes, and there is a limit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hfmds.domain.digest import Digest, digest_of
from hfmds.errors import NotFound, Unavailable, WrongState
from hfmds.storage.blobs import FolderBlobs
from hfmds.wire.tensors import encode_batch
from synthesis_store.pools.open_uploads import OpenUploads
from synthesis_store.pools.pool_records import BatchKey
from tests.support.waiting import eventually
from tests.synthesis_store.examples import (
    GRACE_SECONDS,
    SPEC,
    START,
    Store,
    chunks_of,
    hung_up,
    make_batch,
)

DATA = encode_batch(make_batch(1))
OTHER = encode_batch(make_batch(2))


def begin(store: Store, device_id: str, data: bytes = DATA) -> BatchKey:
    """Begin an upload, and hang up."""
    key = BatchKey("pool-1", device_id, digest_of(data))
    with pytest.raises(ConnectionError):
        store.put_chunks(key, 0, hung_up(data[:200]))
    return key


def age_uploads(store: Store, at: float) -> None:
    """Let all bytes of open uploads have come at that time."""
    for part in store.uploads_folder.iterdir():
        os.utime(part, (at, at))


def test_a_device_has_one_open_upload_in_a_pool_and_the_oldest_of_too_many_goes() -> None:
    uploads = OpenUploads(max_uploads=2)
    a, b, c = (BatchKey("pool-1", device_id, digest_of(DATA)) for device_id in "abc")
    later = BatchKey("pool-1", "a", digest_of(OTHER))
    assert uploads.begin(a) == []
    assert uploads.begin(b) == []
    assert uploads.begin(a) == []  # it goes on
    assert uploads.begin(later) == [a]
    assert uploads.begin(c) == [b]
    uploads.end(a)  # not the open one
    assert len(uploads) == 2
    assert uploads.of_device("a") == [later]
    uploads.end(later)
    assert uploads.of_device("a") == []


def test_an_upload_that_breaks_again_and_again_leaves_nothing_when_complete(store: Store) -> None:
    key = begin(store, "a")
    for offset in (200, 220, 240):
        with pytest.raises(ConnectionError):
            store.put_chunks(key, offset, hung_up(DATA[offset : offset + 20]))
    store.put_chunks(key, 260, chunks_of(DATA[260:]))
    assert (len(store.pools.open_uploads), store.held_bytes()) == (0, len(DATA))


@pytest.mark.parametrize("offset", [0, 199, 201])
def test_a_device_that_goes_on_elsewhere_hears_where_the_upload_stands(
    store: Store, offset: int
) -> None:
    key = begin(store, "a")
    with pytest.raises(WrongState, match="200 is next"):
        store.put_chunks(key, offset, chunks_of(DATA[offset:]))
    assert store.pools.query(key).offset == 200
    store.put_chunks(key, 200, chunks_of(DATA[200:]))
    assert len(store.pools.open_uploads) == 0


def test_an_upload_that_is_refused_at_once_takes_no_other_ones_place(store: Store) -> None:
    begun = begin(store, "a")
    with pytest.raises(NotFound):
        store.put_chunks(BatchKey("no-such-pool", "b", digest_of(DATA)), 0, chunks_of(DATA))
    assert store.pools.open_uploads.of_device("b") == []
    assert store.pools.open_uploads.of_device("a") == [begun]


async def test_uploads_of_one_device_that_overlap_leave_one(store: Store) -> None:
    hang_up = asyncio.Event()

    async def held(data: bytes) -> AsyncIterator[bytes]:
        yield data
        await hang_up.wait()
        raise ConnectionError("the device hung up")

    calls = []
    for number in range(4):
        data = encode_batch(make_batch(number))
        key = BatchKey("pool-1", "a", digest_of(data))
        calls.append(asyncio.create_task(store.pools.put(key, 0, held(data[:50]))))
        await eventually(lambda key=key: store.pools.query(key).offset == 50)
    hang_up.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert (len(store.pools.open_uploads), store.held_bytes()) == (1, 50)


def test_a_broken_upload_does_not_hold_back_the_end_of_anothers_withdrawal(store: Store) -> None:
    begin(store, "a")
    store.put("b", OTHER)
    store.app.retention.withdraw("b")
    events = store.app.events.list(0, 100)
    assert [event.kind for event in events].count("withdrawal-complete") == 1


def test_bytes_that_nobody_goes_on_with_are_deleted(store: Store) -> None:
    begin(store, "a")
    gone_on_with = begin(store, "b", OTHER)
    store.clock.advance(3601)
    age_uploads(store, START.timestamp() - 1)
    with pytest.raises(ConnectionError):
        store.put_chunks(gone_on_with, 200, hung_up(OTHER[200:250]))
    store.app.retention.clean_up()
    assert store.pools.query(gone_on_with).offset == 250
    assert store.held_bytes() == 250


def test_content_that_cannot_be_read_now_need_not_be_sent_again(tmp_path: Path) -> None:
    class Unreadable(FolderBlobs):
        is_away = True

        def local_path(self, digest: Digest) -> Path:
            if self.is_away:
                raise Unavailable("storage is away")
            return super().local_path(digest)

    blobs = Unreadable(tmp_path / "blobs")
    store = Store(tmp_path, blobs=blobs)
    store.pools.open("pool-1", SPEC)
    key = BatchKey("pool-1", "a", digest_of(DATA))
    with pytest.raises(Unavailable):
        store.put("a", DATA)
    blobs.is_away = False
    assert store.pools.query(key).offset == len(DATA)
    assert store.put_chunks(key, len(DATA), chunks_of(b"")) is False
    assert store.pools.query(key).complete


def test_content_of_a_device_that_never_comes_back_is_deleted(store: Store) -> None:
    draft = store.blobs.put_bytes(DATA)  # and here the store was killed
    store.app.retention.clean_up()
    store.clock.advance(GRACE_SECONDS)
    store.app.retention.clean_up()
    assert not store.blobs.contains(draft)


def test_bytes_of_a_withdrawn_device_do_not_wait_to_be_resumed(store: Store) -> None:
    begin(store, "a")
    other = begin(store, "b", OTHER)
    store.app.retention.withdraw("a")
    assert store.held_bytes() == 200
    assert store.pools.query(other).offset == 200


def test_a_starting_replica_leaves_content_that_others_may_be_writing(tmp_path: Path) -> None:
    Store(tmp_path).pools.open("pool-1", SPEC)
    draft = FolderBlobs(tmp_path / "blobs").put_bytes(DATA)  # by another replica, just now
    starting = Store(tmp_path)
    starting.app.retention.clean_up()
    starting.clock.advance(GRACE_SECONDS - 1)
    starting.app.retention.clean_up()
    assert starting.blobs.contains(draft)
