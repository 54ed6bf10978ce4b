"""Opening pools and filling them; sockets are in api/."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.tasks import UploadState
from hfmds.errors import (
    Conflict,
    CorruptData,
    InvalidInput,
    LimitExceeded,
    NotFound,
    TooLate,
    WrongState,
)
from hfmds.storage.blobs import verify_blob
from hfmds.wire.tensors import encode_batch
from synthesis_store.pools.pool_records import BatchKey
from synthesis_store.pools.pools import MAX_CLASSES
from tests.synthesis_store.examples import (
    SPEC,
    Store,
    chunks_of,
    make_batch,
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
async def test_concurrent_puts_of_many_devices_all_count(store: Store) -> None:
    batches = {f"device-{seed}": encode_batch(make_batch(seed)) for seed in range(8)}
    await asyncio.gather(
        *(
            store.pools.put(BatchKey("pool-1", device, digest_of(data)), 0, chunks_of(data))
            for device, data in batches.items()
        )
    )
    assert store.seal(**{name: digest_of(data) for name, data in batches.items()}).samples == 24


@on_both_databases
async def test_two_concurrent_puts_of_the_same_batch_leave_it_whole(store: Store) -> None:
    data = encode_batch(make_batch(1))
    key = BatchKey("pool-1", "a", digest_of(data))
    puts = (store.pools.put(key, 0, chunks_of(data)) for _ in range(2))
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert any(isinstance(outcome, bool) for outcome in outcomes)
    # The slower one may be told that its offset is not where the store stands, never worse.
    assert all(isinstance(outcome, bool | WrongState) for outcome in outcomes)
    assert store.seal(a=key.digest).samples == 3
