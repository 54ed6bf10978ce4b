"""Snapshots that the store must keep regardless of their age."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hfmds.domain.digest import digest_of
from hfmds.domain.tasks import FailureCause, LateReason
from tests.coordinator.records.test_states import Records


@pytest.mark.usefixtures("both_databases")
def test_a_snapshot_is_in_use_while_a_device_has_to_train_with_it(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.phases.open(replace(records.phase_spec("synthesise"), reference="pool-1"), ["a"], 2.0)
    assert records.retention.snapshots_in_use("run") == ()  # an unsealed pool is no snapshot
    records.phases.close(records.phase_spec("synthesise").key, LateReason.DEADLINE, 3.0)
    records.phases.open(replace(records.phase_spec(), reference="snapshot-1"), ["a", "b"], 4.0)
    assert records.retention.snapshots_in_use("run") == ("snapshot-1",)
    assert records.retention.snapshots_in_use("other") == ()
    a, b = (records.tasks.lease(device, "", 5.0) for device in "ab")
    assert a is not None
    assert b is not None
    records.tasks.accept("a", a.task_id, digest_of(b"u"), b"", 6.0)
    assert records.retention.snapshots_in_use("run") == ("snapshot-1",)
    records.tasks.fail("b", b.task_id, "broken", FailureCause.UNEXPECTED, 7.0)
    assert records.retention.snapshots_in_use("run") == ()
