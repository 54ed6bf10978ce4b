"""Permissions and tasks of devices, through the coordinator's classes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hfmds.domain.devices import DeviceState
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.runs import RunState
from hfmds.domain.tasks import Assignment, Finished, RetryLater
from hfmds.errors import (
    Conflict,
    CorruptData,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotFound,
    TooLate,
    WrongState,
)
from hfmds.wire.tensors import encode_weights
from tests.coordinator.workbench import PROFILE, Workbench, echo, make_spec, nudge, workbench
from tests.support.waiting import eventually


@asynccontextmanager
async def with_task(tmp_path: Path) -> AsyncIterator[tuple[Workbench, Assignment]]:
    """Open a coordinator on which device "a" holds the only task of a run."""
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec())
        yield bench, await bench.check_in("a")


async def test_an_unknown_task_is_not_found(tmp_path: Path) -> None:
    async with with_task(tmp_path) as (bench, assignment):
        with pytest.raises(NotFound, match="no-such-task"):
            await bench.leases.renew("a", "no-such-task")
        with pytest.raises(NotFound, match="no-such-task"):
            await bench.submit("a", replace(assignment, task_id="no-such-task"), b"x")


async def test_another_devices_task_is_not_allowed(tmp_path: Path) -> None:
    async with with_task(tmp_path) as (bench, assignment):
        with pytest.raises(NotAllowed, match="'b'"):
            await bench.leases.renew("b", assignment.task_id)
        with pytest.raises(NotAllowed):
            await bench.submit("b", assignment, b"anything")
        with pytest.raises(NotAllowed):
            await anext(bench.downloads.download("b", assignment.task_id, assignment.weights, 0))


@pytest.mark.usefixtures("both_databases")
async def test_a_repeated_submission_gets_the_first_answer(
    tmp_path: Path,
) -> None:
    async with with_task(tmp_path) as (bench, assignment):
        update = encode_weights(nudge(1.0)(bench.weights(assignment), assignment))
        assert await bench.submit("a", assignment, update) is False
        assert await bench.submit("a", assignment, update) is True
        run = await bench.until(lambda run: run.state is RunState.COMPLETED)
        # The answer is the same after the round, when its updates are deleted.
        assert await bench.submit("a", assignment, update) is True
        assert run.completed_rounds == 1
        assert bench.runs.rounds("run")[0].device_ids == ("a",)


@pytest.mark.usefixtures("both_databases")
async def test_another_update_for_an_accepted_task_is_a_conflict(tmp_path: Path) -> None:
    async with with_task(tmp_path) as (bench, assignment):
        await bench.do("a", assignment, echo)
        with pytest.raises(Conflict, match="not counted"):
            await bench.submit("a", assignment, b"another")


async def test_an_update_that_was_not_uploaded_is_refused(tmp_path: Path) -> None:
    async with with_task(tmp_path) as (bench, assignment):
        with pytest.raises(WrongState, match="offset 0"):
            await bench.submit_chunks("a", assignment, digest_of(b"never sent"), [])


async def test_altered_bytes_are_refused_and_the_upload_restarts(tmp_path: Path) -> None:
    async with with_task(tmp_path) as (bench, assignment):
        update = encode_weights(nudge(1.0)(bench.weights(assignment), assignment))
        digest = digest_of(update)
        altered = update[:-1] + bytes([update[-1] ^ 1])
        task_id = assignment.task_id
        with pytest.raises(CorruptData):
            await bench.submit_chunks("a", assignment, digest, [altered])
        assert (await bench.uploads.query("a", task_id, digest)).offset == 0
        assert await bench.submit("a", assignment, update) is False


async def test_a_truncated_upload_resumes_where_it_broke(tmp_path: Path) -> None:
    async with with_task(tmp_path) as (bench, assignment):
        update = encode_weights(nudge(1.0)(bench.weights(assignment), assignment))
        digest, task_id = digest_of(update), assignment.task_id
        with pytest.raises(WrongState, match="1000"):
            await bench.submit_chunks("a", assignment, digest, [update[:1000]])
        state = await bench.uploads.query("a", task_id, digest)
        assert (state.offset, state.complete) == (1000, False)
        rest = [update[1000:]]
        assert await bench.submit_chunks("a", assignment, digest, rest, offset=1000) is False
        assert (await bench.uploads.query("a", task_id, digest)).complete


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w: {name: w[name] for name in list(w)[1:]}, "missing"),
        (lambda w: {**w, "extra": np.zeros(3, np.float32)}, "extra"),
        (lambda w: {name: w[name].reshape(-1, 1) for name in w}, "shape"),
        (lambda w: {name: w[name] * np.float32("nan") for name in w}, "not finite"),
    ],
)
async def test_a_malformed_update_is_refused_with_the_tensor_named(
    tmp_path: Path, spoil: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], message: str
) -> None:
    async with with_task(tmp_path) as (bench, assignment):
        spoiled = encode_weights(spoil(dict(bench.weights(assignment))))
        with pytest.raises(InvalidInput, match=message):
            await bench.submit("a", assignment, spoiled)
        # A correct update still counts.
        assert await bench.do("a", assignment, echo) is False


async def test_an_update_far_larger_than_its_model_is_refused_before_its_bytes(
    tmp_path: Path,
) -> None:
    async with with_task(tmp_path) as (bench, assignment):
        huge = Digest("0" * 64, 1 << 30)
        with pytest.raises(LimitExceeded, match="1073741824"):
            await bench.uploads.query("a", assignment.task_id, huge)


async def test_a_device_may_fetch_only_content_of_its_task(tmp_path: Path) -> None:
    async with with_task(tmp_path) as (bench, assignment):
        with pytest.raises(NotAllowed, match="does not refer"):
            await anext(bench.downloads.download("a", assignment.task_id, digest_of(b"x"), 0))
        with pytest.raises(InvalidInput, match="offset"):
            await anext(
                bench.downloads.download("a", assignment.task_id, assignment.weights, 1 << 40)
            )


async def test_a_device_fetches_the_model_from_any_offset(tmp_path: Path) -> None:
    async with with_task(tmp_path) as (bench, assignment):

        async def fetched(offset: int) -> bytes:
            download = bench.downloads.download("a", assignment.task_id, assignment.weights, offset)
            return b"".join([chunk async for chunk in download])

        model = await fetched(0)
        assert digest_of(model) == assignment.weights
        assert await fetched(100) == model[100:]


@pytest.mark.usefixtures("both_databases")
async def test_a_device_that_was_killed_gets_its_task_again(tmp_path: Path) -> None:
    async with with_task(tmp_path) as (bench, assignment):
        again = await bench.check_in("a")
        assert again == assignment


@pytest.mark.usefixtures("both_databases")
async def test_renewing_keeps_the_lease_and_fails_once_the_run_is_cancelled(tmp_path: Path) -> None:
    async with with_task(tmp_path) as (bench, assignment):
        assert await bench.leases.renew("a", assignment.task_id) == 60.0
        bench.runs.cancel("run")
        with pytest.raises(TooLate):
            await bench.leases.renew("a", assignment.task_id)


async def test_a_check_in_that_waits_gets_work_as_soon_as_a_run_is_created(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        waiting = asyncio.create_task(bench.check_in("a", wait_seconds=30))
        await eventually(lambda: bench.check_ins.waiting)
        await bench.create(make_spec())
        assignment = await asyncio.wait_for(waiting, 20)
        assert assignment.run_id == "run"


async def test_without_work_a_device_gets_a_time_to_ask_again(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        at_once = await bench.check_ins.check_in("a", PROFILE, 0.0, "")
        assert at_once == RetryLater(0.5, "no work for this device")
        waiting = asyncio.create_task(bench.check_ins.check_in("a", PROFILE, 30.0, ""))
        await eventually(lambda: bench.check_ins.waiting)
        bench.check_ins.close()
        stopping = await asyncio.wait_for(waiting, 20)
        assert stopping == RetryLater(0.5, "the coordinator is stopping")


async def test_a_device_that_works_for_one_run_is_finished_when_the_run_is(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        with pytest.raises(NotFound, match="'other'"):
            await bench.check_ins.check_in("a", PROFILE, 0.0, "other")
        await bench.create(make_spec())
        outcome = await bench.check_ins.check_in("a", PROFILE, 30.0, "run")
        assert isinstance(outcome, Assignment)
        waiting = asyncio.create_task(bench.check_ins.check_in("b", PROFILE, 30.0, "run"))
        await bench.do("a", outcome, echo)
        assert isinstance(await asyncio.wait_for(waiting, 20), Finished)


async def test_a_device_whose_waiting_call_breaks_is_away_until_it_comes_back(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        (waiting,) = await bench.arrive("a")
        await eventually(bench.devices)
        assert [device.state for device in bench.devices()] == [DeviceState.AVAILABLE]
        waiting.cancel()
        await asyncio.wait([waiting])
        assert [device.state for device in bench.devices()] == [DeviceState.AWAY]
        await bench.create(make_spec())
        await bench.check_in("a")
        (device,) = bench.devices()
        assert device.state is DeviceState.WORKING
        assert device.task_id is not None
        assert device.profile == PROFILE


@pytest.mark.usefixtures("both_databases")
async def test_giving_up_twice_counts_once(tmp_path: Path) -> None:
    async with with_task(tmp_path) as (bench, assignment):
        for _ in range(2):
            await bench.leases.report_failure("a", assignment.task_id, "broken")
        await bench.until(lambda run: run.state is RunState.PAUSED)
        assert [device.failed_tasks for device in bench.devices()] == [1]
        bench.runs.resume("run")
        await bench.play("a", 1, echo)
        (device,) = bench.devices()
        assert (device.accepted_tasks, device.failed_tasks) == (1, 1)


async def test_an_update_for_a_synthesis_task_is_refused(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(refresh_every=1))
        assignment = await bench.check_in("a")
        with pytest.raises(WrongState, match="is to synthesise"):
            await bench.submit("a", assignment, b"weights")


async def test_devices_are_listed_in_pages_and_counted_by_state(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        names = ["a", "b", "c"]
        waiting = await bench.arrive(*names)
        await bench.create(make_spec(devices=3))
        for name, task in zip(names, waiting, strict=True):
            await task
            if name != "a":
                await bench.leases.report_failure(name, (await task).task_id, "no battery")
        await bench.leases.leave("c")
        device_list = bench.overview.device_list
        everything = device_list.page()
        assert [device.device_id for device in everything] == names
        assert [device.failed_tasks for device in everything] == [0, 1, 1]
        assert [device.last_failure for device in everything] == [
            "",
            "no battery",
            "no battery",
        ]
        pages = [device_list.page("", 2), device_list.page("b", 2), device_list.page("c", 2)]
        assert pages == [everything[:2], everything[2:], ()]
        counted = Counter(device.state for device in everything)
        assert device_list.states() == counted
        assert counted[DeviceState.AWAY] == 1


async def test_a_device_that_said_goodbye_is_not_waited_for_and_gets_its_task_back(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        staying, leaving = await bench.arrive("here", "leaving")
        await bench.create(make_spec(rounds=2, devices=1))
        task = await leaving
        await bench.leases.leave("leaving")
        states = {device.device_id: device.state for device in bench.devices()}
        assert states["leaving"] is DeviceState.AWAY
        assert await bench.check_in("leaving") == task
        await bench.leases.leave("leaving")
        await bench.do("here", await staying, echo)
        await bench.play("here", 1, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert [item.device_ids for item in bench.runs.rounds("run")] == [("here",)] * 2
