"""Pools that seal themselves, by quorum or at a deadline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import PoolState
from hfmds.errors import TooLate, WrongState
from tests.synthesis_store.examples import (
    SPEC,
    Store,
    details_of,
    make_batch,
    named,
)

on_both_databases = pytest.mark.usefixtures("both_databases")


@on_both_databases
def test_a_pool_seals_itself_when_its_quorum_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.pools.open("pool-1", replace(SPEC, seal_quorum=2))
    a = store.put("a", make_batch(1))
    store.put("a", make_batch(2))  # in place of the first
    store.app.sealing.seal_due()
    assert store.pools.status("pool-1").state is PoolState.OPEN
    b = store.put("b", make_batch(3))
    store.app.sealing.seal_due()
    status = store.pools.status("pool-1")
    assert status.state is PoolState.SEALED
    assert [s.digest for s in store.app.snapshots.get(status.snapshot_id).shards][1] == b
    assert not store.blobs.contains(a)


def test_a_pool_seals_itself_at_its_deadline_or_is_abandoned_if_empty(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for pool_id in ("filled", "empty"):
        store.pools.open(pool_id, replace(SPEC, seal_deadline_seconds=60.0))
    store.put("a", make_batch(1), "filled")
    store.clock.advance(59.9)
    store.app.sealing.seal_due()
    assert store.pools.status("filled").state is PoolState.OPEN
    store.clock.advance(0.1)
    store.app.sealing.seal_due()
    assert store.pools.status("filled").state is PoolState.SEALED
    empty = store.pools.status("empty")
    assert (empty.state, empty.state_reason) == (
        PoolState.ABANDONED,
        "no sample that it accepts was in it at its deadline",
    )
    with pytest.raises(TooLate, match="abandoned"):
        store.put("a", make_batch(1), "empty")
    with pytest.raises(WrongState, match="abandoned"):
        store.app.sealing.seal("empty", named())
    assert [event["pool"] for event in details_of(store, "pool-abandoned")] == ["empty"]


def test_a_pool_of_which_every_sample_is_dropped_is_abandoned_at_its_deadline(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    policy = PoolPolicy(psnr_paired_max_db=1.0, leakage_action="drop")
    spec = replace(SPEC, policy=policy, seal_quorum=1, seal_deadline_seconds=60.0)
    store.pools.open("pool-1", spec)
    store.put("a", make_batch(1))
    store.app.sealing.seal_due()
    assert store.pools.status("pool-1").state is PoolState.OPEN
    store.clock.advance(60)
    store.app.sealing.seal_due()
    assert store.pools.status("pool-1").state is PoolState.ABANDONED
    assert store.held_bytes() == 0
