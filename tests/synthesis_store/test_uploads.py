"""Uploads that nobody completes: they leave with their bytes, and there are never too many."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, update
from sqlalchemy.exc import OperationalError

from hfmds.domain.digest import Digest, digest_of
from hfmds.errors import NotFound, Unavailable, WrongState
from hfmds.storage.blobs import FolderBlobs
from hfmds.storage.database import _lines, changing
from hfmds.wire.tensors import encode_batch
from synthesis_store.pools.batch_uploads import Upload, Uploads, uploader
from synthesis_store.pools.pool_records import BatchKey
from synthesis_store.retention.blob_references import loosen
from synthesis_store.tables import BatchRow
from tests.synthesis_store.examples import SPEC, START, Store, chunks_of, hung_up, make_batch

DATA = encode_batch(make_batch(1))
OTHER = encode_batch(make_batch(2))


def begin(store: Store, device_id: str, data: bytes = DATA) -> BatchKey:
    """Begin an upload, and hang up."""
    key = BatchKey("pool-1", device_id, digest_of(data))
    with pytest.raises(ConnectionError):
        asyncio.run(store.pools.put(key, 0, hung_up(data[:200])))
    return key


def age_bytes(store: Store, at: float) -> None:
    """Let all bytes that are here have come then."""
    for part in store.staging._folder.iterdir():
        os.utime(part, (at, at))


def test_a_device_has_one_under_way_in_a_pool_and_the_oldest_of_too_many_go() -> None:
    uploads = Uploads(most=2)
    a, b, c = (BatchKey("pool-1", device_id, digest_of(DATA)) for device_id in "abc")
    again = BatchKey("pool-1", "a", digest_of(OTHER))
    assert uploads.begin(a, START) == ("", [])
    assert uploads.begin(b, START) == ("", [])
    assert uploads.leave(a, "an early mark") == ""
    assert uploads.leave(a, "a mark") == "an early mark"  # of a call that was quicker
    assert uploads.leave(again, "of one that is not under way") == "of one that is not under way"
    assert uploads.begin(a, START) == ("a mark", [])  # it goes on
    assert uploads.begin(again, START) == ("", [Upload(a, START, "a mark")])
    assert uploads.begin(c, START) == ("", [Upload(b, START)])
    assert uploads.end(a) == ""  # not the one under way
    assert len(uploads) == 2
    uploads.leave(again, "another mark")
    assert uploads.end(again) == "another mark"
    assert uploads.begun_before(START + timedelta(seconds=1)) == [c]
    assert uploads.begun_before(START) == []


def test_a_batch_that_is_not_committed_yet_is_not_said_to_be_here(store: Store) -> None:
    asyncio.run(store.pools.put(BatchKey("pool-1", "a", digest_of(DATA)), 0, chunks_of(DATA)))
    held, go_on = threading.Event(), threading.Event()
    answers: list[bool] = []

    def have_it_of_b() -> None:
        with suppress(OperationalError, Unavailable), changing(store.engine) as connection:
            connection.execute(update(BatchRow).values(device_id="b"))
            held.set()
            assert go_on.wait(30)

    def put_it_of_b() -> None:
        key = BatchKey("pool-1", "b", digest_of(DATA))
        with suppress(OperationalError, Unavailable):
            answers.append(asyncio.run(store.pools.put(key, 0, chunks_of(DATA))))

    def refuse(connection: Connection) -> None:
        raise OperationalError("COMMIT", None, Exception("the disk is gone"))

    threads = [threading.Thread(target=each) for each in (have_it_of_b, put_it_of_b)]
    threads[0].start()
    assert held.wait(30)
    threads[1].start()
    while not _lines[store.engine].others_wait:
        time.sleep(0.001)
    event.listen(store.engine, "commit", refuse)
    go_on.set()
    for thread in threads:
        thread.join(30)
    event.remove(store.engine, "commit", refuse)
    assert answers == []


def test_an_upload_that_breaks_again_and_again_is_noted_once(store: Store) -> None:
    key = begin(store, "a")
    for offset in (200, 220, 240):
        with pytest.raises(ConnectionError):
            asyncio.run(store.pools.put(key, offset, hung_up(DATA[offset : offset + 20])))
    assert store.loose_blobs() == 1
    asyncio.run(store.pools.put(key, 260, chunks_of(DATA[260:])))
    assert (len(store.pools.uploads), store.loose_blobs()) == (0, 0)


@pytest.mark.parametrize("offset", [0, 199, 201])
def test_one_that_goes_on_elsewhere_is_told_where_it_stands(store: Store, offset: int) -> None:
    key = begin(store, "a")
    with pytest.raises(WrongState, match=f"offset {offset} was sent, 200 is next"):
        asyncio.run(store.pools.put(key, offset, chunks_of(DATA[offset:])))
    assert store.staging.offset(uploader(key), key.digest) == 200
    assert store.loose_blobs() == 1
    asyncio.run(store.pools.put(key, 200, chunks_of(DATA[200:])))
    assert (len(store.pools.uploads), store.loose_blobs()) == (0, 0)


def test_one_that_is_refused_at_once_takes_nobodys_place(store: Store) -> None:
    begun = begin(store, "a")
    nowhere = BatchKey("no-such-pool", "b", digest_of(DATA))
    with pytest.raises(NotFound):
        asyncio.run(store.pools.put(nowhere, 0, chunks_of(DATA)))
    assert store.pools.uploads.of_device("b") == []
    assert store.pools.uploads.of_device("a") == [begun]
    assert store.loose_blobs() == 1


def test_content_is_asked_for_once_before_it_is_written(tmp_path: Path) -> None:
    asked: list[Digest] = []

    class Asked(FolderBlobs):
        def confirm(self, digest: Digest) -> bool:
            asked.append(digest)  # each is a request, of an object store
            return super().confirm(digest)

    store = Store(tmp_path, blobs=Asked(tmp_path / "blobs"))
    store.pools.open("pool-1", SPEC)
    digest = store.put("a", DATA)
    assert asked == [digest]


def overlap(store: Store, device_id: str, *, same: bool) -> None:
    """Four calls of one device, each while those before are under way; then all break."""

    async def scenario() -> None:
        over = asyncio.Event()

        async def held(chunk: bytes) -> AsyncIterator[bytes]:
            yield chunk
            await over.wait()
            raise ConnectionError("the device hung up")

        calls: list[asyncio.Task[bool]] = []
        for number in range(4):
            data = DATA if same else encode_batch(make_batch(number))
            start = 50 * number if same else 0  # where the one before stands
            key = BatchKey("pool-1", device_id, digest_of(data))
            chunks = held(data[start : start + 50])
            calls.append(asyncio.create_task(store.pools.put(key, start, chunks)))
            while (
                store.loose_blobs() < len(calls)
                or store.staging.offset(uploader(key), key.digest) < start + 50
            ):
                assert not calls[-1].done(), calls[-1]
                await asyncio.sleep(0.01)
        over.set()
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.parametrize("same", [True, False])
def test_uploads_of_one_device_that_overlap_leave_no_note_each(store: Store, same: bool) -> None:
    overlap(store, "a", same=same)
    assert len(store.pools.uploads) == 1
    assert store.loose_blobs() <= 2  # of the last, and that the content may be here of another


def test_a_broken_upload_does_not_hold_back_the_end_of_anothers_withdrawal(store: Store) -> None:
    overlap(store, "a", same=True)
    store.put("b", OTHER)
    store.pools.withdraw("b")
    events = store.pools.events.list(0, 100)
    assert [event.kind for event in events].count("withdrawal-complete") == 1


def test_a_device_that_hangs_up_at_once_leaves_no_note_each_time(tmp_path: Path) -> None:
    store = Store(tmp_path, max_blob_bytes=1 << 30)
    store.pools.open("pool-1", replace(SPEC, max_samples_per_device=10**6))
    noting, cancelled = threading.Event(), threading.Event()
    expect = store.pools.contents.expect

    def slowly(*args: str, **kwargs: str) -> str:
        noting.set()
        assert cancelled.wait(10)
        return expect(*args, **kwargs)

    store.pools.contents.expect = slowly

    async def hang_up(number: int) -> None:
        key = BatchKey("pool-1", "a", Digest(f"{number:064x}", 5 << 20))
        call = asyncio.create_task(store.pools.put(key, 0, chunks_of(b"")))
        await asyncio.to_thread(noting.wait)
        call.cancel()
        await asyncio.sleep(0)
        cancelled.set()
        await asyncio.gather(call, return_exceptions=True)

    for number in range(4):
        noting.clear()
        cancelled.clear()
        asyncio.run(hang_up(number))
    assert (len(store.pools.uploads), store.loose_blobs()) == (1, 1)


def test_what_nobody_goes_on_with_is_forgotten_with_its_bytes(store: Store) -> None:
    begin(store, "a")
    gone_on_with = begin(store, "b", OTHER)
    assert (len(store.pools.uploads), store.loose_blobs()) == (2, 2)
    store.clock.advance(3601)
    age_bytes(store, START.timestamp() - 1)
    with pytest.raises(ConnectionError):
        asyncio.run(store.pools.put(gone_on_with, 200, hung_up(OTHER[200:250])))
    store.pools.clear_left_over()
    assert (len(store.pools.uploads), store.loose_blobs()) == (1, 1)
    assert store.pools.query(gone_on_with).offset == 250
    assert store.held_bytes() == 250


def test_what_could_not_be_taken_leaves_if_nobody_comes_back_for_it(store: Store) -> None:
    store.pools.sealing.stop()  # nothing can be read any more
    with pytest.raises(Unavailable):
        store.put("a", DATA)
    assert store.blobs.contains(digest_of(DATA))  # so that it need not be sent again
    store.clock.advance(3601)
    store.pools.clear_left_over()
    assert not store.blobs.contains(digest_of(DATA))
    assert (len(store.pools.uploads), store.loose_blobs()) == (0, 0)


def test_bytes_of_a_withdrawn_device_do_not_wait_to_be_resumed(store: Store) -> None:
    begin(store, "a")
    other = begin(store, "b", OTHER)
    store.pools.withdraw("a")
    assert (store.held_bytes(), store.loose_blobs()) == (200, 1)
    assert store.pools.query(other).offset == 200


def test_a_replica_that_starts_leaves_what_others_may_be_writing(tmp_path: Path) -> None:
    one = Store(tmp_path)
    one.pools.open("pool-1", SPEC)
    key = begin(one, "a")
    draft = one.blobs.put_bytes(DATA)  # as if the last bytes had just come
    two = Store(tmp_path, replica="two")
    assert (two.loose_blobs(), two.blobs.contains(draft)) == (1, True)
    two.clock.advance(24 * 3600 - 1)
    two.pools.clear_left_over()
    assert two.blobs.contains(key.digest)
    assert Store(tmp_path).loose_blobs() == 0  # the same one, started again
    assert not two.blobs.contains(key.digest)


def test_what_a_replica_noted_that_never_came_back_is_cleared_away_by_another(
    tmp_path: Path,
) -> None:
    one = Store(tmp_path)
    one.pools.open("pool-1", SPEC)
    begin(one, "a")
    two = Store(tmp_path, replica="two")
    two.clock.advance(24 * 3600 + 1)
    two.pools.clear_left_over()
    assert two.loose_blobs() == 0


def test_what_was_given_up_and_is_expected_anew_is_left_alone_too(
    store: Store, tmp_path: Path
) -> None:
    digest = store.blobs.put_bytes(DATA)
    with changing(store.engine) as connection:
        loosen(connection, digest, "withdrawn")
    store.pools.contents.expect(digest)
    assert Store(tmp_path, replica="two").blobs.contains(digest)
