"""The life of a pool through the store's classes; sockets are in test_servicer.py."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from hfmds.algorithm.leakage.measurement import summarise_leakage
from hfmds.algorithm.pool import merge
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.histograms import LeakageHistograms
from hfmds.domain.pools import Contribution, Snapshot
from hfmds.domain.tasks import UploadState
from hfmds.errors import (
    Conflict,
    CorruptData,
    InvalidInput,
    LimitExceeded,
    NotFound,
    TooLate,
    Unavailable,
    WrongState,
)
from hfmds.storage.blobs import FolderBlobs, verify_blob
from hfmds.wire.tensors import encode_batch, read_batch
from synthesis_store.pools.leakage_gate import BatchCounts
from synthesis_store.pools.pool_records import BatchKey
from synthesis_store.pools.pools import MAX_CLASSES
from synthesis_store.snapshots.snapshot_records import SealedPool
from tests.synthesis_store.examples import (
    MIXTURES,
    SPEC,
    START,
    Store,
    chunks_of,
    joined,
    make_batch,
    make_mixtures,
    named,
    same,
)

UNKNOWN = digest_of(b"unknown")

on_both_databases = pytest.mark.usefixtures("both_databases")


# --- opening ------------------------------------------------------------------------------------


@on_both_databases
def test_opening_again_changes_nothing_even_after_sealing(store: Store) -> None:
    store.pools.open("pool-1", SPEC)
    snapshot = store.seal(a=store.put("a", make_batch(1)))
    store.pools.open("pool-1", SPEC)
    assert store.app.snapshots.get(snapshot.snapshot_id) == snapshot


def test_opening_with_another_specification_is_a_conflict(store: Store) -> None:
    with pytest.raises(Conflict, match="pool-1"):
        store.pools.open("pool-1", replace(SPEC, round_number=5))


def test_a_pool_with_absurdly_many_classes_is_refused(store: Store) -> None:
    model = replace(SPEC.model, classes=MAX_CLASSES + 1)
    with pytest.raises(InvalidInput, match=r"model\.classes"):
        store.pools.open("pool-2", replace(SPEC, model=model))


# --- filling ------------------------------------------------------------------------------------


def test_a_batch_that_was_put_is_complete(store: Store) -> None:
    digest = store.put("a", make_batch(1))
    state = store.pools.query(BatchKey("pool-1", "a", digest))
    assert state == UploadState(digest.size_bytes, complete=True)
    assert store.metric("accepted_samples_total") == 3


def test_a_batch_put_twice_is_there_once_and_needs_no_bytes(store: Store) -> None:
    digest = store.put("a", make_batch(1))
    key = BatchKey("pool-1", "a", digest)
    assert store.put_chunks(key, 0, chunks_of(b"")) is True
    assert store.metric("accepted_samples_total") == 3
    assert store.seal(a=digest).samples == 3


def test_a_broken_upload_goes_on_where_it_stood(store: Store) -> None:
    data = encode_batch(make_batch(1))
    key = BatchKey("pool-1", "a", digest_of(data))

    async def broken() -> AsyncIterator[bytes]:
        yield data[:150]
        raise ConnectionError("the device hung up")

    with pytest.raises(ConnectionError):
        store.put_chunks(key, 0, broken())
    assert store.pools.query(key) == UploadState(150, complete=False)
    with pytest.raises(WrongState, match="150 is next"):
        store.put_chunks(key, 0, chunks_of(data))
    assert store.put_chunks(key, 150, chunks_of(data[150:])) is False
    assert store.pools.query(key).complete


def test_too_few_bytes_are_kept_for_the_rest(store: Store) -> None:
    data = encode_batch(make_batch(1))
    key = BatchKey("pool-1", "a", digest_of(data))
    with pytest.raises(WrongState, match="from offset 100"):
        store.put_chunks(key, 0, chunks_of(data[:100]))
    assert store.pools.query(key) == UploadState(100, complete=False)


def test_another_pool_takes_known_content_without_bytes_but_not_without_the_call(
    store: Store,
) -> None:
    store.pools.open("pool-2", replace(SPEC, round_number=5))
    digest = store.put("a", make_batch(1))
    key = BatchKey("pool-2", "b", digest)
    assert store.pools.query(key) == UploadState(digest.size_bytes, complete=False)
    assert store.put_chunks(key, digest.size_bytes, chunks_of(b"")) is False
    assert store.pools.query(key).complete


@on_both_databases
def test_a_later_batch_of_a_device_takes_the_place_of_the_earlier(store: Store) -> None:
    earlier = store.put("a", make_batch(1))
    later = store.put("a", make_batch(2))
    assert not store.blobs.contains(earlier)
    with pytest.raises(WrongState, match="none of the 1 named batches"):
        store.seal(a=earlier)
    assert store.seal(a=later).samples == 3


@on_both_databases
def test_replaced_content_stays_while_another_device_needs_it(store: Store) -> None:
    shared = store.put("a", make_batch(1))
    store.put("b", make_batch(1))
    store.put("a", make_batch(2))
    assert store.blobs.contains(shared)
    assert store.seal(b=shared).samples == 3


def test_unknown_pool_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound, match="pool-9"):
        store.put("a", make_batch(1), pool_id="pool-9")
    with pytest.raises(NotFound, match="pool-9"):
        store.pools.query(BatchKey("pool-9", "a", UNKNOWN))
    with pytest.raises(NotFound, match="pool-9"):
        store.seal("pool-9", a=UNKNOWN)


@on_both_databases
def test_a_sealed_pool_takes_no_batch_but_knows_those_it_took(store: Store) -> None:
    sealed, left_out = store.put("a", make_batch(1)), store.put("b", make_batch(2))
    store.seal(a=sealed)
    held = store.held_bytes()
    with pytest.raises(TooLate, match="pool-1 is sealed"):
        store.put("c", make_batch(3))
    assert store.put("a", make_batch(1)) == sealed
    assert store.put("b", make_batch(2)) == left_out
    assert store.held_bytes() == held


def test_a_pool_sealed_during_an_upload_leaves_nothing_of_it(store: Store) -> None:
    sealed = store.put("a", make_batch(1))
    data = encode_batch(make_batch(2))

    async def slow() -> AsyncIterator[bytes]:
        yield data[:100]
        await asyncio.to_thread(store.seal, a=sealed)
        yield data[100:]

    with pytest.raises(TooLate):
        store.put_chunks(BatchKey("pool-1", "b", digest_of(data)), 0, slow())
    assert store.held_bytes() == sealed.size_bytes


def hostile_batches() -> dict[str, bytes]:
    good = make_batch(1)
    tensors: dict[str, NDArray[Any]] = {
        "images": good.images.pixels,
        "labels": good.images.labels,
        **good.measurements,
    }
    nan = np.array([8, np.nan, 9], np.float32)
    return {
        "not safetensors": b"\x80\x04pickle, perhaps",
        "no bytes": b"",
        "truncated": encode_batch(good)[:-1],
        "an extra tensor": save({**tensors, "extra": nan}),
        "a missing tensor": save({n: t for n, t in tensors.items() if n != "psnr_nearest"}),
        "float images": save({**tensors, "images": good.images.pixels.astype(np.float32)}),
        "wrong shape": save({**tensors, "images": good.images.pixels.reshape(3, 1, 3, 4)}),
        "fewer labels than images": save({**tensors, "labels": good.images.labels[:2]}),
        "label too large": save({**tensors, "labels": np.array([0, 5, 1])}),
        "label below 0": save({**tensors, "labels": np.array([0, -1, 1])}),
        "paired PSNR not a number": save({**tensors, "psnr_paired": nan}),
        "nearest PSNR infinite": save({**tensors, "psnr_nearest": nan * np.inf}),
        "SSIM not a number": save({**tensors, "ssim_nearest": nan}),
        "no samples": encode_batch(make_batch(1, 0)),
    }


@pytest.mark.parametrize("what", hostile_batches())
def test_a_malformed_batch_is_refused_and_leaves_nothing_behind(store: Store, what: str) -> None:
    with pytest.raises(InvalidInput):
        store.put("a", hostile_batches()[what])
    assert store.held_bytes() == 0
    assert store.metric("refused_batches_total", reason="malformed") == 1
    store.put("a", make_batch(1))


def test_too_many_samples_are_refused_and_leave_nothing_behind(store: Store) -> None:
    with pytest.raises(LimitExceeded, match="9 samples"):
        store.put("a", make_batch(1, 9))
    assert store.held_bytes() == 0
    assert store.metric("refused_batches_total", reason="limit") == 1


def test_a_refused_batch_leaves_the_devices_accepted_one(store: Store) -> None:
    accepted = store.put("a", make_batch(1))
    with pytest.raises(LimitExceeded):
        store.put("a", make_batch(2, 9))
    assert store.seal(a=accepted).samples == 3


def test_content_another_pool_accepted_survives_being_refused_by_a_stricter_one(
    store: Store,
) -> None:
    store.pools.open("strict", replace(SPEC, max_samples_per_device=2))
    digest = store.put("a", make_batch(1))
    with pytest.raises(LimitExceeded):
        store.put("a", make_batch(1), pool_id="strict")
    assert store.blobs.contains(digest)


@pytest.mark.parametrize("limit", ["pool", "setting"])
def test_an_oversized_batch_is_refused_before_a_byte_is_taken(tmp_path: Path, limit: str) -> None:
    store = Store(tmp_path, max_blob_bytes=100 if limit == "setting" else 1 << 30)
    store.pools.open("pool-1", SPEC)
    size = 5 << 20

    async def untouched() -> AsyncIterator[bytes]:
        pytest.fail("a byte was asked for")
        yield b""

    key = BatchKey("pool-1", "a", Digest(UNKNOWN.sha256, size))
    with pytest.raises(LimitExceeded, match=f"{size} bytes are announced"):
        store.put_chunks(key, 0, untouched())


def test_altered_bytes_are_discarded_and_can_be_sent_again(store: Store) -> None:
    data = encode_batch(make_batch(1))
    altered = data[:-1] + bytes([data[-1] ^ 1])
    key = BatchKey("pool-1", "a", digest_of(data))
    with pytest.raises(CorruptData):
        store.put_chunks(key, 0, chunks_of(altered))
    assert store.held_bytes() == 0
    assert store.metric("refused_batches_total", reason="corrupt") == 1
    assert store.put_chunks(key, 0, chunks_of(data)) is False


def test_more_bytes_than_announced_are_refused_and_leave_nothing_behind(store: Store) -> None:
    data = encode_batch(make_batch(1))
    key = BatchKey("pool-1", "a", digest_of(data))
    with pytest.raises(InvalidInput, match="announced"):
        store.put_chunks(key, 0, chunks_of(data + b"more"))
    assert store.held_bytes() == 0


@on_both_databases
def test_a_false_size_does_not_get_anothers_content_deleted(store: Store) -> None:
    digest = store.put("a", make_batch(1))
    false = BatchKey("pool-1", "b", Digest(digest.sha256, 5))
    with pytest.raises(CorruptData):
        store.put_chunks(false, 0, chunks_of(b"12345"))
    verify_blob(store.blobs, digest)


@on_both_databases
def test_concurrent_puts_of_many_devices_all_count(store: Store) -> None:
    batches = {f"device-{seed}": encode_batch(make_batch(seed)) for seed in range(8)}

    async def put_all() -> None:
        await asyncio.gather(
            *(
                store.pools.put(BatchKey("pool-1", device, digest_of(data)), 0, chunks_of(data))
                for device, data in batches.items()
            )
        )

    asyncio.run(put_all())
    assert store.seal(**{name: digest_of(data) for name, data in batches.items()}).samples == 24


@on_both_databases
def test_two_concurrent_puts_of_the_same_batch_leave_it_whole(store: Store) -> None:
    data = encode_batch(make_batch(1))
    key = BatchKey("pool-1", "a", digest_of(data))

    async def both() -> list[bool | BaseException]:
        puts = (store.pools.put(key, 0, chunks_of(data)) for _ in range(2))
        return await asyncio.gather(*puts, return_exceptions=True)

    outcomes = asyncio.run(both())
    assert any(isinstance(outcome, bool) for outcome in outcomes)
    # The slower one may be told that its offset is not where the store stands, never worse.
    assert all(isinstance(outcome, bool | WrongState) for outcome in outcomes)
    assert store.seal(a=key.digest).samples == 3


# --- sealing ------------------------------------------------------------------------------------


def read_shards(store: Store, snapshot: Snapshot) -> list[bytes]:
    async def read(digest: Digest) -> bytes:
        return b"".join(
            [
                piece
                async for pieces in store.app.snapshots.stream(snapshot.snapshot_id, [digest])
                for piece in pieces
            ]
        )

    return [asyncio.run(read(shard.digest)) for shard in snapshot.shards]


@on_both_databases
def test_a_snapshot_describes_what_was_sealed(store: Store) -> None:
    batches = {"b": make_batch(2), "a": make_batch(1), "c": make_batch(3)}
    digests = {device: store.put(device, batch) for device, batch in batches.items()}
    snapshot = store.seal(b=digests["b"], a=digests["a"])
    expected = merge({"a": batches["a"], "b": batches["b"]})
    assert (snapshot.pool_id, snapshot.spec, snapshot.sealed_at) == ("pool-1", SPEC, START)
    assert (snapshot.samples, snapshot.duplicates) == (6, 0)
    assert snapshot.class_histogram == tuple(np.bincount(expected.images.labels, minlength=5))
    assert snapshot.leakage == summarise_leakage(expected.psnr_paired, expected.psnr_nearest)
    assert [shard.digest for shard in snapshot.shards] == [digests["a"], digests["b"]]
    assert [shard.samples for shard in snapshot.shards] == [3, 3]
    assert snapshot.size_bytes == digests["a"].size_bytes + digests["b"].size_bytes
    assert read_shards(store, snapshot) == [encode_batch(batches["a"]), encode_batch(batches["b"])]


def test_contributors_are_pseudonyms_stable_within_the_store_only(tmp_path: Path) -> None:
    names = []
    for folder, pool_id in (("one", "pool-1"), ("one", "pool-2"), ("two", "pool-1")):
        store = Store(tmp_path / folder)
        store.pools.open(pool_id, SPEC)
        digests = {
            device: store.put(device, make_batch(1 + i), pool_id) for i, device in enumerate("ab")
        }
        names.append([shard.contributor for shard in store.seal(pool_id, **digests).shards])
    assert names[0] == names[1]
    assert len({*names[0], *names[2]}) == 4
    assert not {"a", "b"} & {*names[0], *names[2]}


def test_equal_samples_of_several_devices_are_kept_once(store: Store) -> None:
    common = make_batch(0, 2)
    batches = {
        "a": make_batch(1, 2),
        "b": common,
        "c": joined(make_batch(2, 1), common, make_batch(3, 1)),
        "d": common,
    }
    digests = {device: store.put(device, batch) for device, batch in batches.items()}
    snapshot = store.seal(**digests)
    assert (snapshot.samples, snapshot.duplicates) == (6, 4)
    assert [shard.samples for shard in snapshot.shards] == [2, 2, 2]
    assert [shard.digest for shard in snapshot.shards[:2]] == [digests["a"], digests["b"]]
    shards = [read_batch(store.blobs.local_path(s.digest), "shard") for s in snapshot.shards]
    assert same(joined(*shards), merge(batches))
    assert store.metric("duplicate_samples_total") == 4


def test_shares_of_mixtures_stay_with_their_samples(store: Store) -> None:
    store.pools.open("mixtures", MIXTURES)
    batches = {
        "a": make_mixtures(1, 2),
        "b": joined(make_mixtures(2, 2), make_mixtures(1, 2), make_mixtures(3, 1)),
    }
    digests = {device: store.put(device, batch, "mixtures") for device, batch in batches.items()}
    snapshot = store.seal("mixtures", **digests)
    assert snapshot.spec == MIXTURES
    assert [shard.samples for shard in snapshot.shards] == [2, 3]
    shards = [read_batch(store.blobs.local_path(s.digest), "shard") for s in snapshot.shards]
    assert same(shards[1], joined(make_mixtures(2, 2), make_mixtures(3, 1)))
    assert same(joined(*shards), merge(batches))


def test_a_batch_without_shares_cannot_spoil_a_pool_of_mixtures(store: Store) -> None:
    store.pools.open("mixtures", MIXTURES)
    with pytest.raises(InvalidInput, match="no class shares"):
        store.put("a", make_batch(1), "mixtures")
    with pytest.raises(InvalidInput, match="it has class shares"):
        store.put("a", make_mixtures(1))
    assert store.held_bytes() == 0


def test_the_order_in_which_devices_came_does_not_matter(tmp_path: Path) -> None:
    ids = set()
    for folder, order in (("one", "abc"), ("two", "cab")):
        store = Store(tmp_path / folder)
        store.pools.open("pool-1", SPEC)
        digests = {device: store.put(device, make_batch(ord(device))) for device in order}
        ids.add(store.seal(**digests).snapshot_id)
    assert len(ids) == 1


def test_equal_content_in_another_pool_is_another_snapshot(store: Store) -> None:
    store.pools.open("pool-2", SPEC)
    first = store.seal(a=store.put("a", make_batch(1)))
    second = store.seal("pool-2", a=store.put("a", make_batch(1), "pool-2"))
    assert first.shards == second.shards
    assert first.snapshot_id != second.snapshot_id


@on_both_databases
def test_sealing_again_with_the_same_batches_answers_as_the_first_time(store: Store) -> None:
    batches = named(a=store.put("a", make_batch(1)), b=store.put("b", make_batch(2)))
    sealed = store.app.sealing.seal("pool-1", batches)
    assert store.app.sealing.seal("pool-1", [*reversed(batches), batches[0]]) == sealed
    assert store.metric("pools", state="sealed") == 1


@on_both_databases
def test_sealing_again_with_other_batches_is_a_conflict(store: Store) -> None:
    a, b = store.put("a", make_batch(1)), store.put("b", make_batch(2))
    store.seal(a=a, b=b)
    for other in (named(a=a), named(a=a, b=b, c=UNKNOWN), named(a=b, b=a), named()):
        with pytest.raises(Conflict, match="other batches"):
            store.app.sealing.seal("pool-1", other)


def test_sealing_nothing_that_is_there_is_refused_and_the_pool_stays_open(store: Store) -> None:
    digest = store.put("a", make_batch(1))
    for batches in (named(), named(a=UNKNOWN), named(b=digest)):
        with pytest.raises(WrongState, match=f"none of the {len(batches)} named batches"):
            store.app.sealing.seal("pool-1", batches)
    store.put("b", make_batch(2))


@on_both_databases
def test_a_named_batch_that_is_not_there_is_left_out_and_listed_each_time(
    tmp_path: Path, store: Store
) -> None:
    earlier, b = store.put("a", make_batch(1)), store.put("b", make_batch(2))
    store.put("a", make_batch(3))  # in place of the earlier
    batches = named(d=b, c=UNKNOWN, b=b, a=earlier)
    sealed = store.app.sealing.seal("pool-1", batches)
    assert sealed.missing == tuple(named(a=earlier, c=UNKNOWN, d=b))
    assert [shard.digest for shard in sealed.snapshot.shards] == [b]
    assert store.app.sealing.seal("pool-1", batches) == sealed
    assert Store(tmp_path).app.sealing.seal("pool-1", batches) == sealed
    with pytest.raises(Conflict):  # though it would give the same snapshot
        store.seal(b=b)


def test_equal_batches_of_two_devices_are_two_contributions(store: Store) -> None:
    digest = store.put("a", make_batch(1))
    store.put("b", make_batch(1))
    snapshot = store.seal(a=digest, b=digest)
    assert (snapshot.samples, snapshot.duplicates) == (3, 3)
    with pytest.raises(Conflict):
        store.seal(a=digest)


@on_both_databases
def test_what_is_not_in_the_snapshot_is_not_kept(store: Store) -> None:
    sealed, left_out = store.put("a", make_batch(1)), store.put("b", make_batch(2))
    trimmed = store.put("c", joined(make_batch(1, 2), make_batch(3, 2)))
    snapshot = store.seal(a=sealed, c=trimmed)
    assert not store.blobs.contains(left_out)
    assert not store.blobs.contains(trimmed) or trimmed in {s.digest for s in snapshot.shards}
    assert store.held_bytes() == snapshot.size_bytes
    assert store.metric("content_bytes") == snapshot.size_bytes


@pytest.mark.parametrize("late", ["a", "c"])
def test_a_pool_that_changes_while_it_is_sealed_is_to_be_sealed_again(
    store: Store, late: str
) -> None:
    """Either a merged batch is replaced, or one that was missing comes."""
    a, b = store.put("a", make_batch(1)), store.put("b", make_batch(2))
    batches = frozenset(named(a=a, b=b, c=digest_of(encode_batch(make_batch(3)))))
    basis = store.app.snapshot_records.seal_input("pool-1", batches)
    assert list(basis.present) == named(a=a, b=b)
    stale = store.app.builder.build(basis)
    store.put(late, make_batch(3))
    with pytest.raises(Unavailable, match="try again"):
        store.app.snapshot_records.record(stale, batches, basis)
    sealed = store.app.sealing.seal("pool-1", batches)
    assert len(sealed.missing) == (2 if late == "a" else 0)


@on_both_databases
def test_concurrent_seals_give_one_snapshot(store: Store) -> None:
    common = make_batch(0, 2)
    a, b = store.put("a", common), store.put("b", joined(common, make_batch(1)))

    async def seal() -> list[Snapshot]:
        seals = (asyncio.to_thread(store.seal, a=a, b=b) for _ in range(4))
        return await asyncio.gather(*seals)

    snapshots = asyncio.run(seal())
    assert len({snapshot.snapshot_id for snapshot in snapshots}) == 1
    assert store.metric("duplicate_samples_total") == 2
    assert read_shards(store, snapshots[0])


def test_a_seal_is_given_up_at_its_next_step_when_the_store_stops(tmp_path: Path) -> None:
    class Stopping(FolderBlobs):
        def put_bytes(self, data: bytes | memoryview) -> Digest:
            if sealing:
                store.app.builder.stop()
            return super().put_bytes(data)

    sealing = False
    store = Store(tmp_path, blobs=Stopping(tmp_path / "blobs"))
    store.pools.open("pool-1", SPEC)
    common = make_batch(0, 2)
    a = store.put("a", common)
    b, c = (store.put(each, joined(common, make_batch(n))) for each, n in (("b", 1), ("c", 2)))
    before, sealing = store.held_bytes(), True
    with pytest.raises(Unavailable, match="stopping"):
        store.seal(a=a, b=b, c=c)  # of which b's and c's shards are written
    assert (store.held_bytes(), store.orphans()) == (before, 0)
    assert Store(tmp_path).seal(a=a, b=b, c=c).samples


# --- serving ------------------------------------------------------------------------------------


@on_both_databases
def test_snapshots_are_listed_newest_first_and_without_shards(store: Store) -> None:
    expected: list[Snapshot] = []
    for number, run_id in ((1, "run-1"), (2, "run-2"), (3, "run-1")):
        pool_id = f"pool-{number}"
        store.pools.open(pool_id, replace(SPEC, run_id=run_id))
        digest = store.put("a", make_batch(number), pool_id)
        expected.insert(0, replace(store.seal(pool_id, a=digest), shards=()))
    assert store.app.snapshots.list(None) == expected
    assert store.app.snapshots.list("run-1") == [expected[0], expected[2]]
    assert store.app.snapshots.list("run-3") == []
    newest = expected[0].snapshot_id
    assert store.app.snapshots.list(None, after=newest, most=1) == [expected[1]]
    assert store.app.snapshots.list("run-1", after=newest) == [expected[2]]
    assert store.app.snapshots.list(None, after="one that is gone", most=2) == expected[:2]


def test_only_a_snapshots_own_shards_are_served(store: Store) -> None:
    store.pools.open("pool-2", SPEC)
    snapshot = store.seal(a=store.put("a", make_batch(1)))
    foreign = store.put("a", make_batch(2), "pool-2")

    async def first_chunk(snapshot_id: str, digest: Digest, offset: int = 0) -> bytes:
        return b"".join(await anext(store.app.snapshots.stream(snapshot_id, [digest], offset)))

    shard = snapshot.shards[0].digest
    with pytest.raises(NotFound, match="no shard"):
        asyncio.run(first_chunk(snapshot.snapshot_id, foreign))
    with pytest.raises(NotFound, match="no shard"):
        asyncio.run(first_chunk(snapshot.snapshot_id, Digest(shard.sha256, 5)))
    with pytest.raises(NotFound, match="no snapshot"):
        asyncio.run(first_chunk("unknown", shard))
    with pytest.raises(NotFound, match="no snapshot"):
        store.app.snapshots.get("unknown")
    for outside in (-1, shard.size_bytes + 1):
        with pytest.raises(InvalidInput, match="outside"):
            asyncio.run(first_chunk(snapshot.snapshot_id, shard, outside))


# --- restarts -----------------------------------------------------------------------------------


@on_both_databases
def test_everything_is_there_after_a_restart(tmp_path: Path, store: Store) -> None:
    snapshot = store.seal(a=store.put("a", make_batch(1)))
    store.pools.open("pool-2", SPEC)
    waiting = store.put("a", make_batch(2), "pool-2")

    again = Store(tmp_path)
    assert again.app.snapshots.get(snapshot.snapshot_id) == snapshot
    assert read_shards(again, snapshot) == read_shards(store, snapshot)
    assert again.pools.query(BatchKey("pool-2", "a", waiting)).complete
    assert again.metric("newest_snapshot_samples", run=SPEC.run_id) == 3
    assert again.metric("pools", state="open") == 1
    later = again.seal("pool-2", a=waiting)
    assert later.shards[0].contributor == snapshot.shards[0].contributor


@on_both_databases
def test_killed_between_content_and_record_the_put_is_simply_repeated(
    tmp_path: Path, store: Store
) -> None:
    data = encode_batch(make_batch(1))
    key = BatchKey("pool-1", "a", digest_of(data))
    store.blobs.put_bytes(data)  # and here the process is killed

    again = Store(tmp_path)
    assert again.pools.query(key) == UploadState(len(data), complete=False)
    assert again.put("a", data) == key.digest
    assert again.seal(a=key.digest).samples == 3


@on_both_databases
def test_killed_while_sealing_the_seal_is_simply_repeated(tmp_path: Path, store: Store) -> None:
    batches = named(
        a=store.put("a", make_batch(1, 2)),
        b=store.put("b", make_batch(1, 3)),
        c=store.put("c", joined(make_batch(1, 2), make_batch(3))),
    )
    basis = store.app.snapshot_records.seal_input("pool-1", frozenset(batches))
    made = store.app.builder.build(basis).snapshot  # and here the process is killed

    again = Store(tmp_path)
    missing = Contribution("d", UNKNOWN)
    assert again.app.sealing.seal("pool-1", [*batches, missing]) == SealedPool(made, (missing,))


@on_both_databases
def test_content_deleted_from_under_an_upload_is_asked_for_again(store: Store) -> None:
    data = encode_batch(make_batch(1))
    key = BatchKey("pool-1", "a", digest_of(data))
    store.app.orphans.discard([store.blobs.put_bytes(data)])  # by a call that was refused
    with pytest.raises(Unavailable, match=str(key.digest)):
        store.app.pool_records.record_batch(key, BatchCounts(3, 0, LeakageHistograms()))
    assert store.put("a", data) == key.digest


def test_stale_uploads_are_purged_at_the_start_and_by_housekeeping(
    tmp_path: Path, store: Store
) -> None:
    def leave_a_part(of: Store) -> Path:
        of.app.content.staging.append("pool-1/x", UNKNOWN, 0, b"un")
        (part,) = of.uploads_folder.iterdir()
        long_ago = START.timestamp() - 3601
        os.utime(part, (long_ago, long_ago))
        return part

    part = leave_a_part(store)
    again = Store(tmp_path)
    assert not part.exists()
    leave_a_part(again)
    again.app.retention.clean_up()
    assert not part.exists()


def test_the_newest_snapshots_leakage_is_measured(store: Store) -> None:
    snapshot = store.seal(a=store.put("a", make_batch(1)))
    shown = {
        (real, statistic): store.metric(
            "newest_snapshot_psnr_db", run=SPEC.run_id, real=real, statistic=statistic
        )
        for real in ("paired", "nearest")
        for statistic in ("mean", "p99", "max")
    }
    assert shown["paired", "mean"] == snapshot.leakage.paired_mean
    assert shown["nearest", "p99"] == snapshot.leakage.nearest_p99
    assert None not in shown.values()
