"""Selection of devices, deadlines, and answers to late devices."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from coordinator.records.device_tasks import TaskRecords
from coordinator.records.states import TaskState
from coordinator.records.tasks import PhaseKey
from hfmds.algorithm.sampling import Candidate, sample_cohort
from hfmds.domain.devices import DeviceProfile, Eligibility
from hfmds.domain.recipe import Sampling
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import Phase, RunState
from hfmds.domain.tasks import Assignment, RetryLater
from hfmds.errors import InvalidInput, TooLate
from tests.coordinator.workbench import (
    PROFILE,
    Workbench,
    echo,
    make_spec,
    model_after,
    nudge,
    workbench,
)
from tests.support.waiting import eventually

ROUND_1 = PhaseKey("run", 1, "train")


async def asked(bench: Workbench, least: int, key: PhaseKey = ROUND_1) -> list[str]:
    """Wait until this number of devices has a task of the phase; return the devices."""

    def devices() -> list[str]:
        phase = bench.records.phases.find(key)
        return [task.device_id for task in phase.tasks] if phase else []

    await eventually(lambda: len(devices()) >= least)
    return devices()


# --- over-selection -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "goal", "expected"), [(1.0, 7, 7), (1.3, 10, 13), (1.3, 1, 2), (1.1, 10, 11)]
)
def test_the_size_of_a_cohort_follows_from_the_goal(
    factor: float, goal: int, expected: int
) -> None:
    assert RoundPolicy(over_selection=factor).asked(goal) == expected


async def test_spare_devices_are_asked_and_the_first_results_close_the_round(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        names = [f"device-{n}" for n in range(8)]
        waiting = dict(zip(names, await bench.arrive(*names), strict=True))
        await bench.create(make_spec(devices=2, cohort_size=3, over_selection=1.3))
        chosen = await asked(bench, 4)
        assert len(chosen) == 4
        # The cohort of the seed is among the selected devices.
        candidates = [Candidate(name, 5) for name in names]
        assert set(sample_cohort(candidates, 3, Sampling(), 0, 1)) < set(chosen)
        tasks = {name: await waiting[name] for name in chosen}
        *first, last = chosen
        for name in first:
            await bench.do(name, tasks[name], echo)
        with pytest.raises(TooLate, match="all results") as late:
            await bench.do(last, tasks[last], echo)
        assert late.value.reason == "goal-reached"
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert bench.runs.rounds("run")[0].device_ids == tuple(first)
        for name in set(names) - set(chosen):
            waiting[name].cancel()


async def test_a_surplus_result_never_counts_even_if_it_arrives_together(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        names = [f"device-{n}" for n in range(6)]
        waiting = await bench.arrive(*names)
        await bench.create(make_spec(devices=2, cohort_size=3, over_selection=2))
        tasks = await asyncio.gather(*waiting)
        outcomes = await asyncio.gather(
            *(bench.do(n, t, echo) for n, t in zip(names, tasks, strict=True)),
            return_exceptions=True,
        )
        assert sum(outcome is False for outcome in outcomes) == 3
        assert sum(isinstance(outcome, TooLate) for outcome in outcomes) == 3
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert len(bench.runs.rounds("run")[0].device_ids) == 3


# --- too slow -------------------------------------------------------------------------------------


async def test_a_task_that_takes_too_long_ends_and_another_device_is_asked(
    tmp_path: Path,
) -> None:
    now = [1000.0]
    async with workbench(tmp_path, clock=lambda: now[0]) as bench:
        names = [f"device-{n}" for n in range(4)]
        waiting = dict(zip(names, await bench.arrive(*names), strict=True))
        spec = make_spec(devices=2, cohort_size=2, deadline_seconds=900, task_deadline_seconds=100)
        await bench.create(spec)
        slow, quick = await asked(bench, 2)
        late = await waiting[slow]
        await bench.do(quick, await waiting[quick], echo)
        now[0] += 99.0
        await bench.leases.renew(slow, late.task_id)  # a renewal does not extend the limit
        now[0] += 1.0
        (third,) = set(await asked(bench, 3)) - {slow, quick}
        with pytest.raises(TooLate, match="allows") as refusal:
            await bench.leases.renew(slow, late.task_id)
        assert refusal.value.reason == "too-slow"
        await bench.do(third, await waiting[third], echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert bench.runs.rounds("run")[0].device_ids == tuple(sorted((quick, third)))
        for task in waiting.values():
            task.cancel()


async def test_a_run_with_only_slow_devices_is_paused_and_can_be_resumed(
    tmp_path: Path,
) -> None:
    now = [1000.0]
    async with workbench(tmp_path, clock=lambda: now[0]) as bench:
        await bench.create(make_spec(task_deadline_seconds=50, deadline_seconds=900))
        task = await bench.check_in("a")
        now[0] += 50.0
        run = await bench.until(lambda run: run.state is RunState.PAUSED)
        assert "longer than policy.task_deadline_seconds, 50 s" in run.state_reason
        with pytest.raises(TooLate):
            await bench.do("a", task, echo)
        bench.runs.resume("run")
        assert await bench.check_in("a") == task
        now[0] += 49.0
        await bench.do("a", task, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)


# --- late results ---------------------------------------------------------------------------------


async def test_late_devices_get_the_reason_and_are_counted(tmp_path: Path) -> None:
    now = [1000.0]
    async with workbench(tmp_path, clock=lambda: now[0], away_seconds=1000.0) as bench:
        reasons = []

        async def late(device: str, task: Assignment) -> None:
            # The run may have ended and deleted the model, so the update is not made from it.
            with pytest.raises(TooLate) as refusal:
                await bench.submit(device, task, b"an update", 1.5)
            reasons.append(refusal.value.reason)

        async def two(run_id: str, **policy: float) -> tuple[Assignment, Assignment]:
            waiting = await bench.arrive("a", "b")
            await bench.create(make_spec(**policy), run_id)  # type: ignore[arg-type]
            a, b = await asyncio.gather(*waiting)
            return a, b

        a, b = await two("deadline", deadline_seconds=10, lease_seconds=1000)
        await bench.do("a", a, echo)
        now[0] += 10
        await bench.until(lambda run: run.state is RunState.COMPLETED, "deadline")
        await late("b", b)

        a, b = await two("gone", deadline_seconds=1000, lease_seconds=10)
        await bench.do("a", a, echo)
        now[0] += 11
        await bench.until(lambda run: run.state is RunState.COMPLETED, "gone")
        await late("b", b)

        a, b = await two("cancelled")
        bench.runs.cancel("cancelled")
        await late("a", a)

        a, b = await two("failed")
        await bench.leases.report_failure("a", a.task_id, "broken")
        await late("a", a)
        await bench.do("b", b, echo)
        with pytest.raises(TooLate) as refusal:
            await bench.leases.renew("b", b.task_id)
        reasons.append(refusal.value.reason)

        assert reasons == ["deadline", "gone", "cancelled", "failed", "accepted"]
        exported = generate_latest(bench.registry).decode()
        for reason in reasons:
            assert f'hfmds_coordinator_late_total{{reason="{reason}"}} 1.0' in exported


# --- eligibility ----------------------------------------------------------------------------------

GIB = 2**30


@pytest.mark.parametrize(
    ("wanted", "profile", "suits"),
    [
        (Eligibility(), PROFILE, True),
        (Eligibility(labels=("site=a",)), PROFILE, False),
        (Eligibility(labels=("site=a",)), replace(PROFILE, labels=("site=a", "x=y")), True),
        (Eligibility(labels=("site=a",)), replace(PROFILE, labels=("site=b",)), False),
        (Eligibility(labels=("site=a", "x=y")), replace(PROFILE, labels=("site=a",)), False),
        (Eligibility(minimum_free_memory_bytes=GIB), PROFILE, False),
        (Eligibility(minimum_free_memory_bytes=GIB), replace(PROFILE, free_memory_bytes=GIB), True),
        (Eligibility(minimum_samples=6), PROFILE, False),
        (Eligibility(minimum_samples=5), PROFILE, True),
        (Eligibility(require_charging=True), PROFILE, False),
        (Eligibility(require_charging=True), replace(PROFILE, charging=False), False),
        (Eligibility(require_charging=True), replace(PROFILE, charging=True), True),
        (Eligibility(require_unmetered=True), replace(PROFILE, charging=True), False),
        (Eligibility(require_unmetered=True), replace(PROFILE, unmetered=True), True),
    ],
)
def test_only_eligible_devices_are_asked(
    wanted: Eligibility, profile: DeviceProfile, suits: bool
) -> None:
    assert wanted.admits(profile) is suits


async def test_a_run_waits_for_an_eligible_device(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        outcome = await bench.check_ins.check_in("phone", PROFILE, 0.0, "")
        assert isinstance(outcome, RetryLater)
        await bench.create(make_spec(eligibility=Eligibility(require_charging=True)))
        run = await bench.until(lambda run: run.progress is not None)
        assert run.progress is not None
        assert (run.progress.phase, run.progress.done) == (Phase.WAITING_FOR_DEVICES, 0)
        plugged_in = replace(PROFILE, charging=True)
        task = await bench.check_ins.check_in("phone", plugged_in, 30.0, "")
        assert isinstance(task, Assignment)
        await bench.do("phone", task, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert [device.profile for device in bench.devices()] == [plugged_in]


async def test_a_devices_description_is_kept_over_a_restart(tmp_path: Path) -> None:
    profile = DeviceProfile(7, "1", "torch", ("model=b", "site=a"), 3 * GIB, None, False)

    async with workbench(tmp_path) as bench:
        await bench.check_ins.check_in("a", profile, 0.0, "")
    async with workbench(tmp_path) as bench:
        assert [device.profile for device in bench.devices()] == [profile]
        # The coordinator knows the current free memory without writing it.
        today = replace(profile, free_memory_bytes=GIB)
        await bench.check_ins.check_in("a", today, 0.0, "")
        assert [device.profile for device in bench.devices()] == [today]


async def test_devices_with_the_highest_loss_are_chosen_once_all_have_trained(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        names = ["a", "b", "c", "d"]
        losses = dict(zip(names, (1.0, 4.0, 2.0, 3.0), strict=True))

        async def device(name: str) -> None:
            while bench.runs.get("run").state is RunState.RUNNING:
                outcome = await bench.check_ins.check_in(name, PROFILE, 0.5, "")
                if isinstance(outcome, Assignment):
                    await bench.do(name, outcome, echo, loss=losses[name])

        await bench.arrive_and_leave(*names)
        sampling = Sampling("power_of_choice", candidates=4)
        await bench.create(make_spec(rounds=4, devices=2, cohort_size=2, sampling=sampling))
        await asyncio.gather(*(device(name) for name in names))
        cohorts = [item.device_ids for item in bench.runs.rounds("run")]
        assert sorted(cohorts[0] + cohorts[1]) == names  # untrained devices come first
        assert cohorts[2:] == [("b", "d")] * 2


# --- several runs ---------------------------------------------------------------------------------


async def test_three_runs_on_one_fleet_end_as_each_does_alone(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    seeds = {"one": 1, "two": 2, "three": 3}

    async def models(folder: Path, *run_ids: str) -> dict[str, bytes]:
        async with workbench(folder) as bench:

            async def device(name: str, amount: float) -> None:
                await bench.play(name, 3 * len(run_ids), nudge(amount))

            for run_id in run_ids:
                spec = make_spec(rounds=2, devices=3, seed=seeds[run_id], refresh_every=2)
                await bench.create(spec, run_id)
            await asyncio.gather(*(device(n, float(i)) for i, n in enumerate(names)))
            for run_id in run_ids:
                await bench.until(lambda run: run.state is RunState.COMPLETED, run_id)
            return {run_id: await model_after(bench, 2, run_id) for run_id in run_ids}

    together = await models(tmp_path / "together", *seeds)
    alone = {}
    for run_id in seeds:
        alone |= await models(tmp_path / run_id, run_id)
    assert together == alone
    assert len(set(alone.values())) == 3


async def test_a_device_takes_one_task_at_a_time_the_oldest_first(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        for run_id in ("one", "two"):
            await bench.create(make_spec(rounds=2), run_id)
        await bench.check_ins.check_in("a", PROFILE, 0.0, "")
        for run_id in ("one", "two"):
            await asked(bench, 1, PhaseKey(run_id, 1, "train"))
        order = []
        for number in (1, 2):
            for _ in range(2):
                task = await bench.check_in("a")
                assert await bench.check_in("a") == task  # the task it holds
                order.append((task.round_number, task.run_id))
                await bench.do("a", task, echo)
                if task.round_number == 1:
                    await asked(bench, 1, PhaseKey(task.run_id, 2, "train"))
            # Every run gets its turn, even if another run is faster.
            assert sorted(order[-2:]) == [(number, "one"), (number, "two")]


async def test_devices_busy_with_another_run_are_not_drawn_while_others_suffice(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        busy = [bench.check_in(name) for name in ("a", "b")]
        await bench.create(make_spec(devices=2), "long")
        held = await asyncio.gather(*busy)
        waiting = await bench.arrive("c", "d")
        await bench.create(make_spec(rounds=3, devices=2, cohort_size=2))
        for task, name in zip(waiting, ("c", "d"), strict=True):
            await bench.do(name, await task, echo)
        await asyncio.gather(bench.play("c", 2, echo), bench.play("d", 2, echo))
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert {item.device_ids for item in bench.runs.rounds("run")} == {("c", "d")}
        assert bench.runs.get("long").state is RunState.RUNNING
        assert TaskRecords(bench.app.engine).get("a", held[0].task_id).state is TaskState.LEASED


async def test_a_round_with_its_goal_does_not_wait_for_a_busy_device(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b")
        await bench.create(make_spec(devices=2), "long")
        await asyncio.gather(*waiting)
        await bench.create(make_spec(devices=1, cohort_size=1, over_selection=2))
        assert await asked(bench, 2) == ["a", "b"]
        bench.runs.cancel("long")
        await bench.create(make_spec(devices=2), "longer")
        await bench.do("a", await bench.check_in("a"), echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert bench.runs.rounds("run")[0].device_ids == ("a",)


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ({"over_selection": 0.9}, "policy.over_selection is 0.9"),
        ({"task_deadline_seconds": -1}, "policy.task_deadline_seconds is -1"),
    ],
)
def test_a_policy_outside_its_limits_is_refused(policy: dict[str, float], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        RoundPolicy(**policy)  # type: ignore[arg-type]
