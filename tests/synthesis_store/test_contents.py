"""Content that nobody needs, and what is said of its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from hfmds.domain.digest import Digest, digest_of
from hfmds.errors import Unavailable
from hfmds.storage.blobs import FolderBlobs
from hfmds.storage.database import changing
from synthesis_store.retention.blob_references import Erased, loosen
from tests.synthesis_store.examples import SPEC, Store, joined, make_batch


class SlowBlobs(FolderBlobs):
    """As an object store: every question takes long, so none should be asked in a transaction."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.others_wait = 0
        self.asked_meanwhile: list[str] = []

    def watch(self, engine: Engine) -> None:
        """Know when a transaction that may write is under way."""

        @event.listens_for(engine, "before_cursor_execute")
        def _began(_: object, __: object, statement: str, *___: object) -> None:
            self.others_wait += statement.startswith("BEGIN IMMEDIATE")

        @event.listens_for(engine, "commit")
        @event.listens_for(engine, "rollback")
        def _ended(_: object) -> None:
            self.others_wait = 0

    def contains(self, digest: Digest) -> bool:
        if self.others_wait:
            self.asked_meanwhile.append("contains")
        return super().contains(digest)

    def delete(self, digest: Digest) -> None:
        before = [*self.asked_meanwhile]
        super().delete(digest)  # which asks whether it is there
        self.asked_meanwhile = [*before, "delete"] if self.others_wait else before


@pytest.fixture
def slow(tmp_path: Path) -> tuple[Store, SlowBlobs]:
    blobs = SlowBlobs(tmp_path / "slow")
    store = Store(tmp_path, blobs=blobs)
    blobs.watch(store.engine)
    return store, blobs


def test_no_writer_waits_while_storage_is_asked_for_batches_and_shards(
    slow: tuple[Store, SlowBlobs],
) -> None:
    store, blobs = slow
    store.pools.open("pool-1", SPEC)
    mine, same = make_batch(1, samples=4), make_batch(2, samples=4)
    a, b = store.put("a", joined(mine, same)), store.put("b", joined(same, make_batch(3)))
    assert len(store.seal(a=a, b=b).shards) == 2  # of which b's is written anew
    assert "contains" not in blobs.asked_meanwhile


def test_storage_is_asked_if_content_was_swept_meanwhile(slow: tuple[Store, SlowBlobs]) -> None:
    store, blobs = slow
    contents, data = store.pools.contents, b"content"
    mark = contents.expect(digest_of(data))
    digest = blobs.put_bytes(data)
    with changing(store.engine) as connection:
        loosen(connection, digest, "withdrawn")  # of another device, which had sent the same
    assert contents.sweep([digest]) == Erased(1, len(data))
    contents.expect(digest)  # by a third one, which has not put it yet
    with pytest.raises(Unavailable, match="removed meanwhile"), changing(store.engine) as at:
        contents.claim(at, digest, mark)


def test_a_mark_is_gone_before_content_is_deleted(tmp_path: Path) -> None:
    class Failing(FolderBlobs):
        def delete(self, digest: Digest) -> None:
            super().delete(digest)
            raise Unavailable("the answer was lost")

    store = Store(tmp_path, blobs=Failing(tmp_path / "failing"))
    contents = store.pools.contents
    mark = contents.expect(digest_of(b"content"))
    digest = store.blobs.put_bytes(b"content")
    with changing(store.engine) as connection:
        loosen(connection, digest, "withdrawn")
    with pytest.raises(Unavailable, match="lost"):
        contents.sweep([digest])
    with pytest.raises(Unavailable, match="removed meanwhile"), changing(store.engine) as at:
        contents.claim(at, digest, mark)


def test_what_somebody_expects_meanwhile_is_not_deleted(store: Store) -> None:
    contents, digest = store.pools.contents, store.blobs.put_bytes(b"content")
    contents.expect(digest)
    with changing(store.engine) as connection:
        loosen(connection, digest, "withdrawn")
    contents._void([digest])
    mark = contents.expect(digest)  # it is here, so nobody sends it again
    assert contents._delete([digest]) == Erased()
    with changing(store.engine) as connection:
        contents.claim(connection, digest, mark)
    assert store.blobs.contains(digest)


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_who_put_the_same_and_are_refused_nothing_is_left(store: Store, first: int) -> None:
    contents, digest = store.pools.contents, digest_of(b"content")
    marks = [contents.expect(digest), contents.expect(digest)]
    store.blobs.put_bytes(b"content")
    assert contents.give_up([(digest, marks[first])]) == Erased()  # the other one sees to it
    store.blobs.put_bytes(b"content")  # by the other one, whose bytes come later
    assert contents.give_up([(digest, marks[1 - first])]) == Erased(1, len(b"content"))
    assert not store.blobs.contains(digest)
    assert store.loose_blobs() == 0


def test_what_is_put_late_is_found_whatever_became_of_what_others_put(
    store: Store, tmp_path: Path
) -> None:
    contents, digest = store.pools.contents, digest_of(b"content")
    mark = contents.expect(digest)
    contents.expect(digest)  # by one that is killed with this one
    store.blobs.put_bytes(b"content")
    with changing(store.engine) as connection:
        contents.claim(connection, digest, mark)
        loosen(connection, digest, "withdrawn")
    assert contents.sweep([digest]) == Erased(1, len(b"content"))  # erased at once
    store.blobs.put_bytes(b"content")
    again = Store(tmp_path)
    assert not again.blobs.contains(digest)
    assert again.loose_blobs() == 0


def test_who_put_a_batch_that_others_are_refused_keeps_it(store: Store) -> None:
    contents, digest = store.pools.contents, store.blobs.put_bytes(b"content")
    refused, mark = contents.expect(digest), contents.expect(digest)
    contents.give_up([(digest, refused)])
    with changing(store.engine) as connection:
        contents.claim(connection, digest, mark)
    assert store.blobs.contains(digest)


def test_what_is_expected_again_while_left_overs_are_listed_is_not_one(store: Store) -> None:
    contents, digest = store.pools.contents, store.blobs.put_bytes(b"content")
    contents.expect(digest)
    store.clock.advance(25 * 3600)
    marks: list[str] = []

    @event.listens_for(store.engine, "after_cursor_execute")
    def _expect(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("SELECT") and "noted_at <" in statement and not marks:
            marks.append("")
            marks[0] = contents.expect(digest)

    assert contents.sweep_left_over() == Erased()
    assert store.blobs.contains(digest)
    assert contents.give_up([(digest, marks[0])]) == Erased(1, len(b"content"))
    assert store.loose_blobs() == 0


def test_others_get_their_turn_while_much_is_swept(slow: tuple[Store, SlowBlobs]) -> None:
    store, blobs = slow
    digests = [blobs.put_bytes(bytes([n])) for n in range(20)]
    with changing(store.engine) as connection:
        for digest in digests:
            loosen(connection, digest)
    turns: list[int] = []

    @event.listens_for(store.engine, "commit")
    def _count(_: object) -> None:
        turns.append(blobs.asked_meanwhile.count("delete"))
        blobs.asked_meanwhile.clear()

    assert store.pools.contents.sweep(digests) == Erased(20, 20)
    assert sum(turns) == 20
    assert max(turns) <= 8


@pytest.mark.filterwarnings("error")  # SQLAlchemy only warns of a row that is deleted twice
def test_content_that_several_devices_sent_is_erased_and_counted_once(store: Store) -> None:
    contents, data = store.pools.contents, [b"the same", b"another"]
    digests = [store.blobs.put_bytes(one) for one in data]
    with changing(store.engine) as connection:
        for digest in digests:
            loosen(connection, digest, "withdrawn")
    assert contents.sweep([digests[0], digests[1], digests[0]]) == Erased(2, sum(map(len, data)))
    assert not store.blobs.contains(digest_of(data[0]))
    assert contents.sweep([digests[0]]) == Erased()
