"""What pools do with batches by their policies, and with false claims in batches."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hfmds.algorithm.pixels import levels, of_levels
from hfmds.domain.digest import digest_of
from hfmds.domain.histograms import histograms_of
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import PoolState
from hfmds.errors import InvalidInput, NotAllowed, WrongState
from hfmds.storage.blobs import CHUNK_BYTES
from hfmds.wire.tensors import encode_batch
from synthesis_store.pools.batch_checks import OtherWeights
from synthesis_store.pools.pool_records import BatchKey, PoolFull
from tests.synthesis_store.examples import SPEC, Store, chunks_of, make_batch, same


def open_pool(store: Store, pool_id: str = "pool-2", **settings: Any) -> None:
    store.pools.open(pool_id, replace(SPEC, policy=PoolPolicy(**settings)))


def measured(seed: int, *psnr: float) -> SyntheticBatch:
    """A batch with this paired PSNR."""
    return replace(make_batch(seed, len(psnr)), psnr_paired=np.array(psnr, np.float32))


def test_a_batch_that_leaks_is_refused_counted_and_leaves_nothing_behind(store: Store) -> None:
    open_pool(store, psnr_paired_max_db=20, leakage_action="refuse")
    with pytest.raises(InvalidInput, match="sample 1: psnr_paired 21 is above 20"):
        store.put("a", measured(1, 20, 21), "pool-2")
    assert store.held_bytes() == 0
    assert store.metric("refused_batches_total", reason="leakage") == 1
    store.put("a", measured(1, 20, 19), "pool-2")
    status = store.pools.status("pool-2")
    assert (status.devices, status.samples, status.leaking_batches) == (1, 2, 1)
    assert store.metric("sample_psnr_db_count", real="paired") == 2


def test_samples_that_leak_are_dropped_when_the_pool_is_sealed(store: Store) -> None:
    open_pool(store, psnr_paired_max_db=20, leakage_action="drop")
    batch = measured(1, 19, 21, 20)
    a = store.put("a", batch, "pool-2")
    b = store.put("b", measured(2, 30, 31), "pool-2")
    status = store.pools.status("pool-2")
    assert (status.devices, status.samples, status.leaking_samples) == (2, 2, 3)
    kept = batch.take(np.array([0, 2]))
    assert status.leakage == histograms_of(kept)
    snapshot = store.seal("pool-2", a=a, b=b)
    assert (snapshot.leaking_samples, snapshot.leaking_samples_dropped) == (3, 3)
    assert snapshot.histograms == histograms_of(kept)
    (shard,) = snapshot.shards
    assert same(store.read(shard.digest), kept)
    assert store.held_bytes() == shard.digest.size_bytes  # what was dropped is erased


def test_a_pool_whose_percentile_passes_the_limit_halts_for_good(store: Store) -> None:
    open_pool(store, halt_psnr_paired_p99_db=20, halt_minimum_samples=4)
    a = store.put("a", measured(1, 30, 30), "pool-2")
    with pytest.raises(NotAllowed, match="99th percentile of psnr_paired of its 5"):
        store.put("b", measured(2, 30, 30, 30), "pool-2")
    status = store.pools.status("pool-2")
    assert status.state is PoolState.HALTED
    assert "above 20 (halt_psnr_paired_p99_db)" in status.state_reason
    for device, batch in (
        ("a", measured(1, 30, 30)),  # erased, so it cannot be said to be here
        ("b", measured(2, 30, 30, 30)),  # again as the first time
        ("c", measured(3, 1)),
    ):
        with pytest.raises(NotAllowed, match="pool-2 is halted: the 99th percentile"):
            store.put(device, batch, "pool-2")
    with pytest.raises(WrongState, match=r"pool-2 .*halted"):
        store.seal("pool-2", a=a)
    assert store.held_bytes() == 0
    assert store.metric("pools", state="halted") == 1


def test_a_replaced_batch_leaves_the_totals(store: Store) -> None:
    open_pool(store, halt_psnr_paired_p99_db=20, halt_minimum_samples=3, max_pool_samples=3)
    store.put("a", measured(1, 30, 30), "pool-2")
    store.put("a", measured(2, 10), "pool-2")
    store.put("b", measured(3, 11, 12), "pool-2")
    status = store.pools.status("pool-2")
    assert status.leakage.psnr_paired == histograms_of(measured(0, 10, 11, 12)).psnr_paired
    with pytest.raises(PoolFull, match="it would have 4 samples"):
        store.put("a", measured(4, 9, 9), "pool-2")
    assert store.metric("refused_batches_total", reason="pool_full") == 1
    assert store.pools.status("pool-2") == status


def test_a_pool_can_pass_while_open_and_halt_when_sealed(store: Store) -> None:
    open_pool(store, halt_psnr_paired_p99_db=20)
    a = store.put("a", measured(1, 25), "pool-2")
    with pytest.raises(WrongState, match="99th percentile of psnr_paired of its 1"):
        store.seal("pool-2", a=a)
    assert store.pools.status("pool-2").state is PoolState.HALTED
    assert store.held_bytes() == 0


def test_a_pool_that_leaks_is_halted_among_however_many_older_samples(store: Store) -> None:
    policy = PoolPolicy(refresh="accumulate", halt_psnr_paired_p99_db=20)
    spec = replace(SPEC, policy=policy, run_id="run-2", max_samples_per_device=300)
    store.pools.open("pool-2", spec)
    first = store.seal("pool-2", a=store.put("a", measured(1, *[10] * 300), "pool-2"))
    store.pools.open("pool-3", spec)
    b = store.put("b", measured(2, 25), "pool-3")  # not one in a hundred of all
    with pytest.raises(WrongState, match="99th percentile of psnr_paired of its 1"):
        store.seal("pool-3", b=b)
    store.pools.open("pool-4", spec)
    c = store.put("c", measured(3, *[19] * 3), "pool-4")
    second = store.seal("pool-4", c=c)
    assert (second.parent_snapshot_id, second.samples) == (first.snapshot_id, 303)
    store.pools.open("pool-5", spec)
    same_again = store.put("d", measured(3, *[19] * 3), "pool-5")  # none of it is new
    assert store.seal("pool-5", d=same_again).samples == 303


async def test_a_batch_made_with_other_weights_is_refused_before_a_byte_is_kept(
    store: Store,
) -> None:
    content = encode_batch(make_batch(1))
    key = BatchKey("pool-1", "a", digest_of(content))
    asked = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal asked
        while True:
            asked += 1
            yield bytes(CHUNK_BYTES)

    with pytest.raises(OtherWeights):
        await store.pools.put(key, 0, endless(), digest_of(b"w^3"))
    assert asked <= 8  # as many as may wait to be written
    assert (store.held_bytes(), store.orphans(), len(store.pools.open_uploads)) == (0, 0, 0)
    assert store.metric("refused_batches_total", reason="other_weights") == 1
    await store.pools.put(key, 0, chunks_of(content), SPEC.weights)


def test_a_pool_in_half_precision_keeps_its_pixels(store: Store) -> None:
    open_pool(store, pixel_type="fp16")
    batch = make_batch(1)
    halves = of_levels(levels(batch.images.pixels) + np.float32(0.25), "fp16")
    fine = replace(batch, images=replace(batch.images, pixels=np.minimum(halves, np.float16(1))))
    with pytest.raises(InvalidInput, match="its pixels are uint8"):
        store.put("a", batch, "pool-2")
    snapshot = store.seal("pool-2", a=store.put("a", fine, "pool-2"))
    assert same(store.read(snapshot.shards[0].digest), fine)


# --- no good -------------------------------------------------------------------------------------


def with_header(header: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def claims() -> dict[str, bytes]:
    """Files that say of themselves what is not so."""
    good = encode_batch(make_batch(1))
    length = struct.unpack("<Q", good[:8])[0]
    header = json.loads(good[8 : 8 + length])
    body = good[8 + length :]
    taken = header["psnr_paired"]["data_offsets"]

    def saying(name: str, **claim: Any) -> bytes:
        return with_header({**header, name: {**header[name], **claim}}, body)

    return {
        "a header of an exabyte": struct.pack("<Q", 1 << 60) + good[8:],
        "a header longer than the file": struct.pack("<Q", len(good)) + good[8:],
        "images of a terabyte": saying("images", shape=[3, 1, 1 << 20, 1 << 20]),
        "images that overflow": saying("images", shape=[1 << 40, 1 << 40, 4, 3]),
        "images without pixels": saying("images", shape=[3, 1, 0, 1 << 40], data_offsets=[0, 0]),
        "labels beyond the end": saying("labels", data_offsets=[0, 1 << 40]),
        "a negative shape": saying("images", shape=[-3, 1, 4, 3]),
        "a negative offset": saying("images", data_offsets=[-36, 0]),
        "the same bytes twice": saying("psnr_nearest", data_offsets=taken),
        "bytes that belong to nothing": good + b"\x00" * 16,
        "nested too deep": with_header({}, b"")[:8] + b"[" * 2000,
    }


def test_false_claims_are_refused_and_leave_nothing_behind(store: Store) -> None:
    for what, content in claims().items():
        with pytest.raises(InvalidInput):
            store.put("a", content)
        assert store.held_bytes() == 0, what
    assert store.metric("refused_batches_total", reason="malformed") == len(claims())


def test_many_tiny_batches_of_a_device_are_one_batch(store: Store) -> None:
    for seed in range(8):
        last = make_batch(seed, 1)
        digest = store.put("a", last)
    assert store.held_bytes() == digest.size_bytes
    assert store.pools.status("pool-1").samples == 1
