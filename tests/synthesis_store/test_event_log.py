"""The event log tells of everything, and never names a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfmds.errors import NotFound
from tests.synthesis_store.examples import (
    SPEC,
    Store,
    details_of,
    events_of,
    make_batch,
)

on_both_databases = pytest.mark.usefixtures("both_databases")


def test_the_log_has_pools_and_numbers_of_refusals_but_no_device_id(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    store.pools.open("pool-1", SPEC)
    store.put("device-a", make_batch(1))
    for seed in range(3):
        with pytest.raises(Exception, match="samples"):
            store.put("device-b", make_batch(seed, 9))
    with pytest.raises(NotFound):
        store.put("device-b", make_batch(1), "unknown")
    store.pools.refused_batches.write()
    store.pools.refused_batches.write()
    store.app.retention.withdraw("device-a")
    log = events_of(store)
    assert [event.kind for event in log] == [
        "pool-opened",
        "batches-refused",
        "device-withdrawn",
        "content-erased",
        "withdrawal-complete",
    ]
    assert details_of(store, "pool-opened") == [{"pool": "pool-1", "round": 4, "run": "run-1"}]
    assert details_of(store, "batches-refused") == [{"pool": "pool-1", "reasons": {"limit": 3}}]
    assert not any("device-" in event.details for event in log)
    again = Store(tmp_path)
    assert events_of(again) == log
