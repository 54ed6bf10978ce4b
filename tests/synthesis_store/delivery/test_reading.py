"""Listing snapshots and reading their shards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.pools import Snapshot
from hfmds.errors import (
    InvalidInput,
    NotFound,
)
from tests.synthesis_store.examples import (
    SPEC,
    Store,
    make_batch,
    read_shard,
)

UNKNOWN = digest_of(b"unknown")

on_both_databases = pytest.mark.usefixtures("both_databases")


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
    shard = snapshot.shards[0].digest
    with pytest.raises(NotFound, match="no shard"):
        read_shard(store, snapshot.snapshot_id, foreign)
    with pytest.raises(NotFound, match="no shard"):
        read_shard(store, snapshot.snapshot_id, Digest(shard.sha256, 5))
    with pytest.raises(NotFound, match="no snapshot"):
        read_shard(store, "unknown", shard)
    with pytest.raises(NotFound, match="no snapshot"):
        store.app.snapshots.get("unknown")
    for outside in (-1, shard.size_bytes + 1):
        with pytest.raises(InvalidInput, match="outside"):
            read_shard(store, snapshot.snapshot_id, shard, outside)
