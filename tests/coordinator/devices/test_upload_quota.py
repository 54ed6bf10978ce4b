"""A task cannot fill the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.devices.uploads import MAX_UPDATES, UploadQuota
from hfmds.domain.digest import digest_of
from hfmds.errors import InvalidInput, LimitExceeded
from tests.coordinator.workbench import make_spec, workbench


def test_each_allowed_update_may_be_sent_repeatedly() -> None:
    quota = UploadQuota()
    for _ in range(3):
        for number in range(MAX_UPDATES):
            quota.take("task", digest_of(bytes([number])))
    with pytest.raises(LimitExceeded, match="submit one of them"):
        quota.take("task", digest_of(b"one more"))
    quota.take("other", digest_of(b"one more"))


def test_old_tasks_are_forgotten() -> None:
    quota = UploadQuota()
    for number in range(10_100):
        quota.take(str(number), digest_of(b"x"))
    assert len(quota._updates) == 10_000


async def test_a_device_that_sends_too_many_updates_is_refused(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec())
        task = await bench.check_in("greedy")
        for number in range(MAX_UPDATES):
            with pytest.raises(InvalidInput):
                await bench.submit("greedy", task, bytes([number]))
        with pytest.raises(LimitExceeded, match="8 different updates"):
            await bench.submit("greedy", task, b"one more")
        with pytest.raises(InvalidInput):
            await bench.submit("greedy", task, bytes([0]))
