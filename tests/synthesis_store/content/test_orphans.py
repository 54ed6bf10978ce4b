"""Content that no row needs: what is deleted, when, and what writers notice of it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from hfmds.domain.digest import Digest, digest_of
from hfmds.errors import Unavailable
from hfmds.storage.blobs import FolderBlobs
from hfmds.storage.database import write_session
from hfmds.wire.tensors import encode_batch
from synthesis_store.content.orphans import Erased
from tests.synthesis_store.examples import GRACE_SECONDS, SPEC, Store, joined, make_batch

CONTENT = b"content"

on_both_databases = pytest.mark.usefixtures("both_databases")


class SlowBlobs(FolderBlobs):
    """Like an object store: nobody may ask it anything while all other writers wait."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.others_wait = False
        self.asked: list[str] = []  # within a transaction

    def watch(self, engine: Engine) -> None:
        """Know when a transaction that may write is under way."""

        @event.listens_for(engine, "before_cursor_execute")
        def _began(_: object, __: object, statement: str, *___: object) -> None:
            self.others_wait |= statement.startswith("BEGIN IMMEDIATE")

        @event.listens_for(engine, "commit")
        @event.listens_for(engine, "rollback")
        def _ended(_: object) -> None:
            self.others_wait = False

    def contains(self, digest: Digest) -> bool:
        if self.others_wait:
            self.asked.append("contains")
        return super().contains(digest)

    def delete(self, digest: Digest) -> None:
        before = [*self.asked]
        super().delete(digest)  # which asks whether the blob exists
        self.asked = [*before, "delete"] if self.others_wait else before


def add_orphan(store: Store, digest: Digest, reason: str = "") -> None:
    with write_session(store.engine) as session:
        store.app.orphans.add(session, digest, reason)


def rescue(store: Store, digest: Digest) -> None:
    with write_session(store.engine) as session:
        store.app.orphans.rescue(session, [digest])


def test_no_writer_waits_while_storage_is_asked_for_batches_and_shards(tmp_path: Path) -> None:
    blobs = SlowBlobs(tmp_path / "slow")
    store = Store(tmp_path, blobs=blobs)
    blobs.watch(store.engine)
    store.pools.open("pool-1", SPEC)
    mine, same = make_batch(1, samples=4), make_batch(2, samples=4)
    a, b = store.put("a", joined(mine, same)), store.put("b", joined(same, make_batch(3)))
    assert len(store.seal(a=a, b=b).shards) == 2  # the builder writes b's
    assert "contains" not in blobs.asked


def test_others_get_their_turn_while_much_is_deleted(tmp_path: Path) -> None:
    blobs = SlowBlobs(tmp_path / "slow")
    store = Store(tmp_path, blobs=blobs)
    blobs.watch(store.engine)
    digests = [blobs.put_bytes(bytes([n])) for n in range(20)]
    for digest in digests:
        add_orphan(store, digest)
    deletions: list[int] = []

    @event.listens_for(store.engine, "commit")
    def _count(_: object) -> None:
        deletions.append(blobs.asked.count("delete"))
        blobs.asked.clear()

    assert store.app.orphans.delete(digests) == Erased(20, 20)
    assert sum(deletions) == 20
    assert max(deletions) <= 8


@on_both_databases
def test_a_writer_whose_content_was_deleted_must_send_it_again(store: Store) -> None:
    digest = store.blobs.put_bytes(CONTENT)  # the writer has found it here
    add_orphan(store, digest, "withdrawn")  # of another device, which had sent the same
    assert store.app.orphans.delete([digest]) == Erased(1, len(CONTENT))
    with pytest.raises(Unavailable, match=str(digest)):
        rescue(store, digest)
    store.blobs.put_bytes(CONTENT)
    rescue(store, digest)
    assert store.app.orphans.delete_due() == Erased()
    assert store.blobs.contains(digest)


def test_a_writer_notices_a_deletion_whose_commit_failed(tmp_path: Path) -> None:
    class Failing(FolderBlobs):
        def delete(self, digest: Digest) -> None:
            super().delete(digest)
            raise Unavailable("the answer was lost")

    store = Store(tmp_path, blobs=Failing(tmp_path / "failing"))
    digest = store.blobs.put_bytes(CONTENT)
    add_orphan(store, digest)
    with pytest.raises(Unavailable, match="lost"):
        store.app.orphans.delete([digest])
    with pytest.raises(Unavailable, match=str(digest)):
        rescue(store, digest)


def test_a_deletion_whose_commit_failed_is_done_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = store.blobs.put_bytes(CONTENT)
    add_orphan(store, digest, "withdrawn")

    def refuse(connection: sqlite3.Connection) -> None:
        connection.rollback()
        raise sqlite3.OperationalError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(store.engine.dialect, "do_commit", refuse)
        with pytest.raises(OperationalError):
            store.app.orphans.delete([digest])
    assert store.orphans() == 1
    assert store.app.orphans.delete_due() == Erased(1, len(CONTENT))
    assert [event.kind for event in store.app.events.list(1, 10)] == ["content-erased"]


def test_content_that_a_row_needs_again_is_not_deleted(store: Store) -> None:
    data = encode_batch(make_batch(1))
    add_orphan(store, digest_of(data))
    digest = store.put("a", data)
    assert store.orphans() == 0
    add_orphan(store, digest, "withdrawn")  # of another device
    assert store.app.orphans.delete([digest]) == Erased()
    assert store.blobs.contains(digest)
    assert store.orphans() == 0


@on_both_databases
def test_the_sweep_deletes_what_a_crash_left_after_the_grace_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.pools.open("pool-1", SPEC)
    needed, left = store.put("a", make_batch(1)), store.blobs.put_bytes(CONTENT)
    assert store.app.orphans.sweep() == Erased()
    store.clock.advance(GRACE_SECONDS - 1)
    assert store.app.orphans.sweep() == Erased()
    again = Store(tmp_path)  # the grace time goes on over a restart
    again.clock.advance(GRACE_SECONDS)
    assert again.app.orphans.sweep() == Erased(1, len(CONTENT))
    assert not again.blobs.contains(left)
    assert again.blobs.contains(needed)


def test_a_new_database_over_old_content_deletes_none_of_it(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    digest = blobs.put_bytes(CONTENT)  # another database names it
    store = Store(tmp_path, blobs=blobs)
    for _ in range(2):
        assert store.app.orphans.sweep() == Erased()
        store.clock.advance(GRACE_SECONDS)
    assert blobs.contains(digest)


def test_content_that_is_stored_after_its_deletion_is_swept_too(store: Store) -> None:
    digest = store.blobs.put_bytes(CONTENT)
    add_orphan(store, digest)
    store.app.orphans.delete([digest])
    store.blobs.put_bytes(CONTENT)  # by a writer that is killed before it adds its row
    store.app.orphans.sweep()
    assert store.orphans() == 1
    store.clock.advance(GRACE_SECONDS)
    assert store.app.orphans.sweep() == Erased(1, len(CONTENT))


def test_a_deletion_is_remembered_longer_than_a_call_takes(store: Store) -> None:
    digest = store.blobs.put_bytes(CONTENT)
    add_orphan(store, digest)
    store.app.orphans.delete([digest])
    store.clock.advance(24 * 3600 - 1)
    store.app.orphans.sweep()
    with pytest.raises(Unavailable):
        rescue(store, digest)
    store.clock.advance(2)
    store.app.orphans.sweep()
    rescue(store, digest)  # no writer relies on that content any longer


def test_what_the_sweep_finds_does_not_delay_what_is_due(store: Store) -> None:
    digest = store.blobs.put_bytes(CONTENT)
    store.app.orphans.sweep()
    add_orphan(store, digest, "withdrawn")
    assert store.app.orphans.sweep() == Erased(1, len(CONTENT))


def test_discarded_content_stays_if_another_row_needs_it(store: Store) -> None:
    needed = store.put("a", make_batch(1))
    draft = store.blobs.put_bytes(CONTENT)
    assert store.app.orphans.discard([needed, draft]) == Erased(1, len(CONTENT))
    assert store.blobs.contains(needed)


@pytest.mark.filterwarnings("error")  # SQLAlchemy only warns of a row that is deleted twice
def test_content_that_several_devices_sent_is_deleted_and_counted_once(store: Store) -> None:
    data = [b"the same", b"another"]
    digests = [store.blobs.put_bytes(content) for content in data]
    for digest in digests:
        add_orphan(store, digest, "withdrawn")
    erased = store.app.orphans.delete([digests[0], digests[1], digests[0]])
    assert erased == Erased(2, sum(map(len, data)))
    assert store.app.orphans.delete([digests[0]]) == Erased()


def test_a_name_with_a_wrong_size_gets_nothing_deleted(store: Store) -> None:
    needed = store.put("a", make_batch(1))
    add_orphan(store, Digest(needed.sha256, 5))
    assert store.app.orphans.delete_due() == Erased()
    assert store.blobs.contains(needed)
