"""Rounds from opening to the recorded result, through the coordinator's classes."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from coordinator.records.tables import Base
from coordinator.records.tasks import PhaseKey
from hfmds.algorithm.models.building import initial_weights
from hfmds.algorithm.seeds import derive_seed, task_seed
from hfmds.domain.devices import require_id
from hfmds.domain.recipe import TrainingRecipe
from hfmds.domain.runs import Phase, Progress, RunState
from hfmds.domain.tasks import Assignment, SynthesiseWork, TrainWork
from hfmds.errors import TooLate, WrongState
from hfmds.wire.tensors import encode_weights
from tests.coordinator.workbench import (
    LEAKAGE,
    MODEL,
    PROFILE,
    PoolStoreInMemory,
    echo,
    make_spec,
    model_after,
    nudge,
    workbench,
)
from tests.support.databases import order_text_without_case
from tests.support.waiting import eventually


async def test_the_model_after_a_round_is_the_mean_of_its_updates(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2, devices=2))
        await asyncio.gather(bench.play("a", 2, nudge(1.0)), bench.play("b", 2, nudge(3.0)))
        run = await bench.until(lambda run: run.state is RunState.COMPLETED)
        start = initial_weights(MODEL, derive_seed(0, "weights"))
        assert run.completed_rounds == 2
        expected = {}
        for name, values in start.items():
            for _ in range(2):  # two rounds, each in float32 on the devices
                up, down = values + np.float32(1.0), values + np.float32(3.0)
                values = ((up.astype(np.float64) + down) / 2).astype(np.float32)
            expected[name] = values
        assert await model_after(bench, 2) == encode_weights(expected)
        rounds = bench.runs.rounds("run")
        assert rounds[0].device_ids == ("a", "b")
        assert rounds[0].training_loss == 1.5
        assert (rounds[0].traffic.received_bytes, rounds[0].traffic.sent_bytes) == (14, 6)
        assert rounds[0].evaluation is None


async def test_rounds_do_not_depend_on_how_the_database_orders_text(tmp_path: Path) -> None:
    order_text_without_case(tmp_path, Base.metadata)
    names = ["edge-1", "dev_1", "Phone-1", "dev1"]
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2, devices=4))
        await asyncio.gather(*(bench.play(name, 2, nudge(1.0)) for name in names))
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        in_order = ("Phone-1", "dev1", "dev_1", "edge-1")
        assert [done.device_ids for done in bench.runs.rounds("run")] == [in_order] * 2
        phase = bench.records.phases.get(PhaseKey("run", 1, "train"))
        assert tuple(task.device_id for task in phase.tasks) == in_order


async def test_an_assignment_carries_the_tasks_own_seed_and_the_first_model(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(seed=5))
        assignment = await bench.check_in("a")
        assert assignment.seed == task_seed(5, "train", 1, "a")
        start = initial_weights(MODEL, derive_seed(5, "weights"))
        assert encode_weights(bench.weights(assignment)) == encode_weights(start)
        assert assignment.work == TrainWork(None)


async def test_an_old_device_trains_at_the_learning_rate_of_the_round(
    tmp_path: Path,
) -> None:
    spec = make_spec(rounds=3)
    falling = TrainingRecipe(learning_rate=0.5, later_from_round=2, later_learning_rate=0.05)
    recipe = dataclasses.replace(spec.recipe, training=falling)
    async with workbench(tmp_path) as bench:
        await bench.create(dataclasses.replace(spec, recipe=recipe))
        assigned = await bench.play("a", 3, echo)
        rates = [TrainingRecipe(learning_rate=rate) for rate in (0.5, 0.05, 0.05)]
        assert [assignment.recipe.training for assignment in assigned] == rates
        assert bench.records.runs.get("run").spec.recipe.training == falling


async def test_the_id_of_a_pool_cannot_be_computed(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec())
        run = bench.records.runs.get("run")
        again = bench.records.runs.get("run")  # as after a restart
        ids = [run.pool_id(number) for number in (1, 2)]
        assert ids == [again.pool_id(number) for number in (1, 2)]
        marks = {pool_id.removeprefix(f"{run.run_uid}-")[2:] for pool_id in ids}
        assert len(marks) == 2
        assert all(len(mark) == 32 for mark in marks)  # 128 bits
        assert run.pool_key not in repr(run)
        other = dataclasses.replace(run, pool_key="another")
        assert other.pool_id(1) != run.pool_id(1)
        longest = dataclasses.replace(run, run_uid=f"{'x' * 100}.12345678")
        assert require_id(longest.pool_id(10**9), "pool_id")


async def test_a_refresh_seals_the_accepted_batches_and_the_round_trains_with_the_snapshot(
    tmp_path: Path,
) -> None:
    store = PoolStoreInMemory()
    async with workbench(tmp_path, store=store) as bench:
        await bench.create(make_spec(rounds=2, devices=2, refresh_every=2))
        # Round 1: train. Round 2: synthesise, then train.
        tasks, _ = await asyncio.gather(bench.play("a", 3, echo), bench.play("b", 3, echo))
        (pool_id,) = store.sealed
        assert pool_id == bench.records.runs.get("run").pool_id(2)
        assert [task.work for task in tasks] == [
            TrainWork(None),
            SynthesiseWork(pool_id),
            TrainWork(f"snapshot-of-{pool_id}"),
        ]
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        first, second = bench.runs.rounds("run")
        assert first.pool is None
        assert not first.refreshed
        assert second.refreshed
        assert second.pool is not None
        assert second.pool.samples == 4
        assert second.pool.leakage == LEAKAGE
        # Two training and two synthesis results at (7, 3) and (1, 2) bytes.
        assert (second.traffic.received_bytes, second.traffic.sent_bytes) == (16, 10)
        assert len(store.sealed[pool_id]) == 2


async def test_a_withdrawn_device_trains_and_synthesises_nothing(tmp_path: Path) -> None:
    store = PoolStoreInMemory()
    store.withdrawn = {"a", "elsewhere"}
    async with workbench(tmp_path, store=store) as bench:
        await bench.create(make_spec(devices=2, refresh_every=1))
        only_trains = asyncio.create_task(bench.play("a", 1, echo))
        second = asyncio.create_task(bench.play("b", 2, echo))
        # Two devices are present, but only one may synthesise, and two are needed.
        waits = Progress(1, Phase.WAITING_FOR_DEVICES, 1, 2)
        await bench.until(lambda run: run.progress == waits)
        await bench.play("c", 2, echo)
        await second
        (pool_id,) = store.sealed
        (task,) = await only_trains
        assert task.work == TrainWork(f"snapshot-of-{pool_id}")
        assert [item.device_id for item in store.sealed[pool_id]] == ["b", "c"]


async def test_a_run_waits_while_the_store_is_away_and_then_continues(tmp_path: Path) -> None:
    store = PoolStoreInMemory()
    store.away = True
    async with workbench(tmp_path, store=store) as bench:
        await bench.create(make_spec(refresh_every=1))
        playing = asyncio.create_task(bench.play("a", 2, echo))
        run = await bench.until(
            lambda run: run.progress is not None and run.progress.phase is Phase.WAITING_FOR_STORE
        )
        assert run.state is RunState.RUNNING
        assert store.calls
        store.away = False
        await playing
        await bench.until(lambda run: run.state is RunState.COMPLETED)


async def test_a_round_opens_only_when_enough_devices_are_present(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(devices=2))
        first = asyncio.create_task(bench.check_in("a"))
        run = await bench.until(lambda run: run.progress is not None and run.progress.done == 1)
        assert run.progress is not None
        assert run.progress.phase is Phase.WAITING_FOR_DEVICES
        assert run.progress.expected == 2
        await bench.check_in("b")
        assert (await first).round_number == 1


async def test_a_round_closes_at_its_deadline_with_quorum_and_a_late_result_is_aborted(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        spec = make_spec(rounds=1, devices=1, deadline_seconds=1.0)
        slow, quick = await bench.arrive("slow", "quick")
        await bench.create(spec)
        await bench.do("quick", await quick, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert bench.runs.rounds("run")[-1].device_ids == ("quick",)
        with pytest.raises(TooLate, match="check in again"):
            await bench.do("slow", await slow, echo)


async def test_a_round_does_not_wait_for_a_device_with_an_expired_lease(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        gone, there = await bench.arrive("gone", "there")
        await bench.create(make_spec(lease_seconds=0.5, deadline_seconds=600))
        await gone
        await bench.do("there", await there, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert bench.runs.rounds("run")[-1].device_ids == ("there",)


async def test_a_round_short_of_its_minimum_at_the_deadline_is_extended_to_new_devices(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b")
        await bench.create(make_spec(devices=2, deadline_seconds=0.5))
        a, _b = await asyncio.gather(*waiting)  # b takes its task and disappears
        await bench.do("a", a, echo)
        await bench.play("c", 1, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert bench.runs.rounds("run")[-1].device_ids == ("a", "c")


async def test_a_round_that_devices_cannot_do_pauses_the_run_with_their_reason(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec())
        assignment = await bench.check_in("a")
        await bench.leases.report_failure("a", assignment.task_id, "images are too small")
        run = await bench.until(lambda run: run.state is RunState.PAUSED)
        assert "images are too small" in run.state_reason
        assert "a" in run.state_reason
        # Resuming the run tries again.
        bench.runs.resume("run")
        await bench.play("a", 1, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)


async def test_a_new_cohort_of_the_requested_size_is_drawn_each_round(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        names = [f"device-{n}" for n in range(6)]
        done = asyncio.Event()

        async def device(name: str) -> None:
            while not done.is_set():
                outcome = await bench.check_ins.check_in(name, PROFILE, 0.5, "")
                if isinstance(outcome, Assignment):
                    await bench.do(name, outcome, echo)

        playing = [asyncio.create_task(device(name)) for name in names]
        await eventually(lambda: len(bench.app.registry.view("").present) == len(names))
        await bench.create(make_spec(rounds=4, devices=2, cohort_size=2))
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        done.set()
        await asyncio.gather(*playing)
        cohorts = [item.device_ids for item in bench.runs.rounds("run")]
        assert all(len(cohort) == 2 for cohort in cohorts)
        assert len(set(cohorts)) > 1


async def test_updates_are_dropped_after_the_round_and_every_model_is_kept(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2, devices=2))
        await asyncio.gather(bench.play("a", 2, nudge(1.0)), bench.play("b", 2, nudge(3.0)))
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        await asyncio.to_thread(bench.drivers.close, 10.0)  # the driver deletes after the record
        folder = tmp_path / "blobs" / "run"
        await eventually(lambda: sum(path.is_file() for path in folder.rglob("*")) == 2)  # w^1, w^2
        assert await model_after(bench, 1) != await model_after(bench, 2)


async def test_nobody_has_deleted_content_open_while_the_next_round_is_at_work(
    tmp_path: Path,
) -> None:
    def deleted_but_open() -> list[str]:
        links = Path("/proc/self/fd").iterdir()
        names = [str(link.readlink()) for link in links if link.is_symlink()]
        return [name for name in names if name.startswith(f"{tmp_path}/blobs/run/incoming/")]

    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2, devices=2))
        await asyncio.gather(bench.play("a", 1, nudge(1.0)), bench.play("b", 1, nudge(3.0)))
        # Both devices take a task without working.
        await asyncio.gather(bench.check_in("a"), bench.check_in("b"))
        await eventually(lambda: not deleted_but_open())  # a deleted file is in `incoming`


async def test_dropping_an_update_that_equals_the_model_keeps_the_model(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=3))
        await bench.play("a", 3, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert await model_after(bench, 1) == await model_after(bench, 3)


async def test_a_failure_drafts_one_replacement(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        names = [f"device-{n}" for n in range(6)]
        waiting = await bench.arrive(*names)
        await bench.create(make_spec(devices=2, cohort_size=2))
        chosen = {}
        while len(chosen) < 2:
            await asyncio.wait(
                [task for task in waiting if not task.done()],
                return_when=asyncio.FIRST_COMPLETED,
            )
            chosen = {n: t.result() for n, t in zip(names, waiting, strict=True) if t.done()}
        (able, good), (broken, bad) = chosen.items()
        await bench.do(able, good, echo)
        await bench.leases.report_failure(broken, bad.task_id, "broken")

        def asked() -> int:
            return len(bench.records.phases.get(PhaseKey("run", 1, "train")).tasks)

        await eventually(lambda: asked() > 2)
        assert asked() == 3
        for task in waiting:
            task.cancel()


async def test_a_batch_missing_from_the_store_is_left_out_and_the_run_continues(
    tmp_path: Path,
) -> None:
    store = PoolStoreInMemory()
    store.lost = {"a"}
    async with workbench(tmp_path, store=store) as bench:
        await bench.create(make_spec(devices=2, refresh_every=1))
        await asyncio.gather(bench.play("a", 2, echo), bench.play("b", 2, echo))
        run = await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert run.last_round is not None
        assert run.last_round.pool is not None
        assert run.last_round.pool.samples == 2


async def test_a_refusal_of_the_store_pauses_the_run_until_it_is_resumed(tmp_path: Path) -> None:
    store = PoolStoreInMemory()
    store.refusal = WrongState("the pool is broken")
    async with workbench(tmp_path, store=store) as bench:
        await bench.create(make_spec(refresh_every=1))
        run = await bench.until(lambda run: run.state is RunState.PAUSED)
        assert "the pool is broken" in run.state_reason
        store.refusal = None
        bench.runs.resume("run")
        await bench.play("a", 2, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)


async def test_a_diverged_model_is_recorded_and_the_run_continues(tmp_path: Path) -> None:
    async with workbench(tmp_path, held_out="digits:16#test") as bench:
        spec = make_spec(rounds=2)
        model = dataclasses.replace(spec.recipe.model, classes=10)
        recipe = dataclasses.replace(spec.recipe, model=model)
        await bench.create(dataclasses.replace(spec, recipe=recipe))
        await bench.play("a", 2, nudge(1e30))
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        first = bench.runs.rounds("run")[0]
        assert first.evaluation is not None
        assert not math.isfinite(first.evaluation.loss)


async def test_a_device_that_failed_gets_no_task_while_others_suffice(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        able, broken = await bench.arrive("able", "broken")
        await bench.create(make_spec(rounds=2))
        await bench.leases.report_failure("broken", (await broken).task_id, "too small")
        await bench.do("able", await able, echo)
        waiting = asyncio.create_task(bench.check_in("broken", 30.0))
        await bench.play("able", 1, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert not waiting.done()
        waiting.cancel()
        assert [item.device_ids for item in bench.runs.rounds("run")] == [("able",)] * 2
        failures = {device.device_id: device.last_failure for device in bench.devices()}
        assert failures == {"able": "", "broken": "too small"}
