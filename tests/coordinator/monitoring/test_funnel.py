"""The funnel counts each task once in every stage that it reached."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator.monitoring.funnel import FunnelRecords
from coordinator.records.phases import Seen
from hfmds.domain.administration.operations import Funnel
from hfmds.domain.devices import DeviceState
from hfmds.domain.digest import digest_of
from hfmds.domain.tasks import FailureCause, LateReason, TaskStage
from hfmds.errors import InvalidInput, NotFound
from hfmds.storage.database import open_database
from tests.coordinator.records.test_states import Records
from tests.coordinator.workbench import echo, make_spec, workbench
from tests.support.databases import database_of


@pytest.mark.usefixtures("both_databases")
def test_every_task_counts_in_each_stage_it_passed(tmp_path: Path) -> None:
    records = Records(tmp_path)
    engine = open_database(database_of(tmp_path))
    funnel = FunnelRecords(engine)
    devices = ["accepted", "failed", "late", "refused", "unneeded", "waiting"]
    records.phases.open(records.phase_spec(), devices, 2.0, Seen(9, 7))
    tasks = {}
    for device in devices[:4]:
        task = records.tasks.lease(device, "", 3.0)
        assert task is not None
        tasks[device] = task.task_id
    records.tasks.renew("failed", tasks["failed"], 3.0, TaskStage.DOWNLOADED)
    records.tasks.renew("late", tasks["late"], 3.0, TaskStage.COMPUTED)
    records.tasks.renew("late", tasks["late"], 3.0, TaskStage.DOWNLOADED)  # sent earlier
    records.tasks.renew("late", tasks["late"], 3.0)
    records.tasks.refuse("refused", tasks["refused"], "malformed", 4.0)
    records.tasks.fail("refused", tasks["refused"], "no", FailureCause.UNSUITABLE, 4.0)
    records.tasks.fail("failed", tasks["failed"], "no", FailureCause.DIVERGED, 4.0)
    records.tasks.accept("accepted", tasks["accepted"], digest_of(b"u"), b"", 5.0)
    counted = {"here": 9, "eligible": 7, "assigned": 6, "taken": 4, "downloaded": 4}
    counted |= {"computed": 3, "uploaded": 2, "accepted": 1}
    lost = {"failed": {"refused": 1, "diverged": 1}, "refused": {"malformed": 1}}
    assert funnel.funnels("run") == (Funnel("train", **counted, **lost, pending=3),)  # type: ignore[arg-type]
    assert funnel.stages() == {
        TaskStage.ASSIGNED: 2,
        TaskStage.TAKEN: 0,
        TaskStage.DOWNLOADED: 0,
        TaskStage.COMPUTED: 1,
        TaskStage.UPLOADED: 0,
    }
    records.phases.close(records.phase_spec().key, LateReason.DEADLINE, 6.0)
    expected = Funnel("train", **counted, **lost, late={"deadline": 1}, unneeded=2)  # type: ignore[arg-type]
    for scope in (("run", 1), ("run", 0), ("", 0)):
        assert funnel.funnels(*scope) == (expected,)
    # Resuming a run keeps the failures of earlier phases.
    records.runs.pause("run", 7.0)
    records.runs.resume("run", 8.0)
    assert funnel.funnels("run") == (expected,)
    engine.dispose()


def test_a_funnel_of_an_unknown_run_or_round_is_not_found(tmp_path: Path) -> None:
    Records(tmp_path)
    engine = open_database(database_of(tmp_path))
    funnel = FunnelRecords(engine)
    assert funnel.funnels("run", 1) == ()
    with pytest.raises(NotFound, match="no run 'none'"):
        funnel.funnels("none")
    with pytest.raises(NotFound, match="'run' has not begun round 2"):
        funnel.funnels("run", 2)
    with pytest.raises(InvalidInput, match="round 2"):
        funnel.funnels("", 2)
    engine.dispose()


async def test_the_coordinator_records_how_far_a_task_is(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec())
        assignment = await bench.check_in("a")

        async def stage() -> TaskStage | None:
            (device,) = await asyncio.to_thread(bench.devices)
            assert device.state is DeviceState.WORKING
            return device.stage

        assert await stage() is TaskStage.TAKEN
        await bench.leases.renew("a", assignment.task_id, TaskStage.DOWNLOADED)
        assert await stage() is TaskStage.DOWNLOADED
        await bench.leases.renew("a", assignment.task_id, TaskStage.COMPUTED)
        assert await stage() is TaskStage.COMPUTED
        with pytest.raises(InvalidInput):
            await bench.submit("a", assignment, b"no update")
        assert await stage() is TaskStage.UPLOADED
        await bench.do("a", assignment, echo)
        (funnel,) = bench.overview.funnels("run", 1)
        assert (funnel.here, funnel.eligible, funnel.accepted) == (1, 1, 1)
