"""Hostile callers get a clear refusal and leave nothing behind.

The faults within a batch are in test_policies.py and test_pools.py.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from hfmds.domain.digest import digest_of
from hfmds.domain.pools import PoolState
from hfmds.errors import CorruptData, InvalidInput, LimitExceeded, NotFound, WrongState
from hfmds.storage.blobs import verify_blob
from hfmds.v1 import common_pb2
from hfmds.v1 import synthesis_store_pb2 as pb
from hfmds.wire.conversions.common import digest_message
from hfmds.wire.conversions.store_calls import pool_spec_message
from hfmds.wire.tensors import encode_batch
from synthesis_store.pools.pool_records import BatchKey
from tests.synthesis_store.api.test_store_service import chunk, header, over_grpc
from tests.synthesis_store.examples import SPEC, Store, chunks_of, hung_up, make_batch

DATA = encode_batch(make_batch(1))
PATHS = ["../../etc/passwd", "/etc/passwd", "a/b", "a\\b", "..", "a\x00b", "a\nb", "%2e%2e"]


# --- uploads ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sha256", "size_bytes"),
    [
        ("ab" * 32, -1),
        ("ab" * 32, -(2**63)),
        ("AB" * 32, 1),
        ("ab" * 31, 1),
        ("../" + "a" * 61, 1),
        ("", 0),
    ],
)
async def test_a_digest_that_is_none_is_refused_wherever_it_stands(
    store: Store, tmp_path: Path, sha256: str, size_bytes: int
) -> None:
    false = common_pb2.Digest(sha256=sha256, size_bytes=size_bytes)

    async with over_grpc(store, tmp_path) as device:
        contribution = pb.Contribution(device_id="a", batch=false)
        spec = pool_spec_message(SPEC)
        spec.weights.CopyFrom(false)
        stub = device.stub
        for method, request in (
            (stub.QueryBatch, pb.QueryBatchRequest(pool_id="pool-1", device_id="a", batch=false)),
            (stub.SealPool, pb.SealPoolRequest(pool_id="pool-1", contributions=[contribution])),
            (stub.OpenPool, pb.OpenPoolRequest(pool_id="pool-2", spec=spec)),
        ):
            with pytest.raises(InvalidInput, match="digest"):
                await device.raw(method, request)
        with pytest.raises(InvalidInput, match="digest"):
            await device.put_parts(header(DATA, batch=false), chunk(DATA))
        with pytest.raises(InvalidInput, match="digest"):
            await device.put_parts(header(DATA, weights=false), chunk(DATA))

    assert store.held_bytes() == 0


@pytest.mark.parametrize("offset", [-1, -(2**63), 1, 2**63 - 1])
async def test_an_offset_where_nothing_stands_is_refused(
    store: Store, tmp_path: Path, offset: int
) -> None:
    async with over_grpc(store, tmp_path) as device:
        with pytest.raises(WrongState, match="0 is next"):
            await device.put_parts(header(DATA, offset=offset), chunk(DATA))

    assert store.held_bytes() == 0


def test_bytes_that_are_announced_as_others_content_do_not_become_it(store: Store) -> None:
    others = store.put("a", make_batch(2, 4))
    key = BatchKey("pool-1", "b", replace(others, size_bytes=len(DATA)))
    with pytest.raises(CorruptData):
        store.put_chunks(key, 0, chunks_of(DATA))
    verify_blob(store.blobs, others)
    assert store.held_bytes() == others.size_bytes


def test_a_device_that_begins_many_uploads_keeps_room_for_one(store: Store) -> None:
    for seed in range(20):
        data = encode_batch(make_batch(seed))
        key = BatchKey("pool-1", "a", digest_of(data))
        with pytest.raises(ConnectionError):
            store.put_chunks(key, 0, hung_up(data[:200]))
    assert store.held_bytes() == 200
    assert store.pools.query(key).offset == 200  # the last one can be resumed
    store.put_chunks(key, 200, chunks_of(data[200:]))
    assert store.held_bytes() == len(data)
    assert store.orphans() == 0


def test_naming_pools_that_are_not_there_costs_nothing(store: Store) -> None:
    for number in range(20):
        with pytest.raises(NotFound):
            store.put("a", DATA, f"pool-x{number}")
    store.pools.refused_batches.write()
    assert [event.kind for event in store.app.events.list(0, 10)] == ["pool-opened"]
    assert store.metric("refused_batches_total", reason="unknown_pool") == 20
    assert (store.held_bytes(), store.orphans()) == (0, 0)


def test_refusals_are_noted_in_all_however_many_there_are(store: Store) -> None:
    too_large = encode_batch(make_batch(1, 9))
    for _ in range(20):
        with pytest.raises(LimitExceeded):
            store.put("a", too_large)
    store.pools.refused_batches.write()
    assert len(store.app.events.list(0, 10)) == 2


def test_refusals_that_cannot_be_noted_now_are_noted_later(store: Store) -> None:
    with pytest.raises(LimitExceeded):
        store.put("a", encode_batch(make_batch(1, 9)))
    with store.engine.begin() as connection:
        connection.execute(text("ALTER TABLE store_events RENAME TO gone"))
    with pytest.raises(OperationalError):
        store.pools.refused_batches.write()
    with store.engine.begin() as connection:
        connection.execute(text("ALTER TABLE gone RENAME TO store_events"))
    with pytest.raises(LimitExceeded):
        store.put("a", encode_batch(make_batch(1, 9)))
    store.pools.refused_batches.write()
    store.pools.refused_batches.write()
    (noted,) = store.app.events.list(1, 10)
    assert json.loads(noted.details) == {"pool": "pool-1", "reasons": {"limit": 2}}


@pytest.mark.soak
@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_ten_thousand_tiny_batches_cost_no_more_than_their_bytes(tmp_path: Path) -> None:
    count, at_once = 10_000, 100
    store = Store(tmp_path)
    store.pools.open("pool-1", SPEC)

    async def put(seed: int) -> None:
        data = encode_batch(make_batch(seed, 1))
        key = BatchKey("pool-1", f"device-{seed}", digest_of(data))
        await store.pools.put(key, 0, chunks_of(data, len(data)))

    for first in range(0, count, at_once):
        await asyncio.gather(*map(put, range(first, first + at_once)))
    status = store.pools.status("pool-1")
    assert (status.devices, status.samples) == (count, count)
    assert (len(store.pools.open_uploads), store.orphans()) == (0, 0)
    sealed = store.app.sealing.seal("pool-1", store.app.snapshot_records.batches("pool-1"))
    assert sealed.snapshot.samples + sealed.snapshot.duplicates == count
    assert store.held_bytes() == sealed.snapshot.size_bytes


# --- calls --------------------------------------------------------------------------------------


async def test_ids_that_are_paths_are_refused_by_every_call(store: Store, tmp_path: Path) -> None:
    spec, digest = pool_spec_message(SPEC), digest_message(digest_of(DATA))

    def requests(stub: Any, bad: str) -> list[tuple[Any, Any]]:
        open_pool = pb.OpenPoolRequest(pool_id="p", spec=spec, referenced_snapshots=[bad])
        named_run = pb.PoolSpec.FromString(spec.SerializeToString())
        named_run.run_id = bad
        return [
            (stub.OpenPool, open_pool),
            (stub.OpenPool, pb.OpenPoolRequest(pool_id="p", spec=named_run)),
            (stub.GetPool, pb.GetPoolRequest(pool_id=bad)),
            (stub.GetSnapshot, pb.GetSnapshotRequest(snapshot_id=bad)),
            (stub.ListSnapshots, pb.ListSnapshotsRequest(run_id=bad)),
            (stub.GetShare, pb.GetShareRequest(snapshot_id=bad)),
            (stub.ReleaseRun, pb.ReleaseRunRequest(run_id=bad)),
            (stub.WithdrawDevice, pb.WithdrawDeviceRequest(device_id=bad)),
            (stub.WithdrawDevice, pb.WithdrawDeviceRequest(device_id="a", run_id=bad)),
        ]

    async with over_grpc(store, tmp_path) as device:
        for bad in PATHS:
            for method, request in requests(device.stub, bad):
                with pytest.raises(InvalidInput, match="is not an id"):
                    await device.raw(method, request)
            stream = device.stub.DownloadShard(
                pb.DownloadShardRequest(snapshot_id=bad, digest=digest)
            )
            with pytest.raises(Exception, match="is not an id"):
                await stream.read()


@pytest.mark.parametrize(
    "changes",
    [
        {"seal_deadline_seconds": math.nan},
        {"seal_deadline_seconds": math.inf},
        {"seal_deadline_seconds": -1.0},
        {"seal_deadline_seconds": 1e300},
        {"seal_quorum": -1},
        {"max_samples_per_device": 0},
        {"max_samples_per_device": -5},
        {"round": -1},
        {"policy": common_pb2.PoolPolicy(near_threshold=math.nan)},
        {"policy": common_pb2.PoolPolicy(psnr_paired_max_db=math.nan)},
        {"policy": common_pb2.PoolPolicy(refresh_max_samples=-1, refresh=2)},
        {"policy": common_pb2.PoolPolicy(refresh=99)},
    ],
    ids=str,
)
async def test_a_pool_that_makes_no_sense_is_not_opened(
    store: Store, tmp_path: Path, changes: dict[str, Any]
) -> None:
    spec = pool_spec_message(SPEC)
    for name, value in changes.items():
        if isinstance(value, common_pb2.PoolPolicy):
            spec.policy.MergeFrom(value)
        else:
            setattr(spec, name, value)

    async with over_grpc(store, tmp_path) as device:
        with pytest.raises(InvalidInput):
            await device.raw(device.stub.OpenPool, pb.OpenPoolRequest(pool_id="p", spec=spec))
        with pytest.raises(NotFound):
            await device.client.get_pool("p")


def test_a_batch_cannot_be_named_twice_or_for_another(store: Store) -> None:
    """A seal that names a batch for a device that did not put it gets nothing of it."""
    digest = store.put("a", DATA)
    with pytest.raises(WrongState, match="none of the 1 named batches"):
        store.seal(b=digest)
    assert store.pools.status("pool-1").state is PoolState.OPEN
