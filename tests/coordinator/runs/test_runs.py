"""The life of runs through the coordinator's classes: operators' commands and restarts."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from coordinator.records.phases import PhaseSpec
from coordinator.records.rounds import RoundRecords
from coordinator.records.tasks import PhaseKey
from hfmds.domain.methods import FedGan, FedGen
from hfmds.domain.runs import Phase, Progress, RunState
from hfmds.domain.tasks import Assignment, RetryLater
from hfmds.errors import Conflict, InvalidInput, NotFound, Unavailable, WrongState
from hfmds.service.limits.open_files import OWN_FILES, open_files_allowed
from tests.coordinator.workbench import (
    PROFILE,
    PoolStoreInMemory,
    Workbench,
    echo,
    make_spec,
    model_after,
    nudge,
    workbench,
)
from tests.support.waiting import eventually


async def test_creating_a_run_twice_is_one_run_and_another_specification_a_conflict(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        first = await bench.create(make_spec())
        again = await bench.create(make_spec())
        assert again.created_at == first.created_at
        with pytest.raises(Conflict, match="'run'"):
            await bench.create(make_spec(seed=1))
        chosen = await bench.create(make_spec(), run_id="")
        assert chosen.run_id.startswith("fedavg-")
        assert {run.run_id for run in bench.runs.list()} == {"run", chosen.run_id}


@pytest.mark.usefixtures("both_databases")
async def test_runs_are_listed_behind_a_run_also_among_those_of_the_same_time(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        records, spec = bench.records.runs, make_spec(devices=2)
        for run_id, created_at in (("old", 1.0), ("b", 2.0), ("a", 2.0), ("new", 3.0)):
            records.create(run_id, spec, created_at)
        in_order = ["new", "a", "b", "old"]
        assert [run.run_id for run in records.list()] == in_order
        for position, run_id in enumerate(in_order):
            behind = [run.run_id for run in records.list(run_id, most=2)]
            assert behind == in_order[position + 1 :][:2]
        assert [run.run_id for run in records.list("gone", most=2)] == in_order[:2]


@pytest.mark.parametrize("run_id", ["../run", "a b", "", "x" * 101])
async def test_a_malformed_run_id_is_refused(tmp_path: Path, run_id: str) -> None:
    async with workbench(tmp_path) as bench:
        if run_id:
            with pytest.raises(InvalidInput, match="run_id"):
                await bench.create(make_spec(), run_id)
        with pytest.raises(NotFound):
            bench.runs.get(run_id)


async def test_a_model_that_cannot_be_built_is_refused(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        spec = make_spec()
        model = replace(spec.recipe.model, architecture="no-such-net")
        with pytest.raises(InvalidInput, match="no-such-net"):
            await bench.create(replace(spec, recipe=replace(spec.recipe, model=model)))
        assert bench.runs.list() == []


async def test_a_held_out_set_that_does_not_fit_the_model_is_refused_at_creation(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path, held_out="digits:20#test") as bench:
        with pytest.raises(InvalidInput, match="HFMDS_HELD_OUT"):
            await bench.create(make_spec())  # 16x16 images of 3 classes


async def test_classes_missing_from_the_held_out_set_are_the_callers_fault(
    tmp_path: Path,
) -> None:
    (tmp_path / "pets" / "yak").mkdir(parents=True)
    Image.new("L", (16, 16)).save(tmp_path / "pets" / "yak" / "1.png")

    async with workbench(tmp_path / "bench", held_out=str(tmp_path / "pets")) as bench:
        spec = make_spec()
        named = replace(spec.recipe, class_names=("ant", "bee", "cat"))
        with pytest.raises(InvalidInput, match=r"'yak'.*HFMDS_HELD_OUT.*ant, bee, cat"):
            await bench.create(replace(spec, recipe=named))


async def test_a_model_is_evaluated_on_the_held_out_set(tmp_path: Path) -> None:
    async with workbench(tmp_path, held_out="digits:16#test") as bench:
        spec = make_spec()
        model = replace(spec.recipe.model, classes=10)
        await bench.create(replace(spec, recipe=replace(spec.recipe, model=model)))
        await bench.play("a", 1, echo)
        run = await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert run.last_round is not None
        assert run.last_round.evaluation is not None
        assert run.last_round.evaluation.samples > 100
        assert 0 <= run.last_round.evaluation.accuracy < 0.5  # untrained


async def test_a_paused_run_assigns_no_task_and_accepts_open_results(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2))
        assignment = await bench.check_in("a")
        assert bench.runs.pause("run").state is RunState.PAUSED
        assert bench.runs.pause("run").state is RunState.PAUSED
        assert await bench.do("a", assignment, echo) is False
        outcome = await bench.check_ins.check_in("a", PROFILE, 0.3, "")
        assert isinstance(outcome, RetryLater)
        assert bench.runs.resume("run").state is RunState.RUNNING
        assert (await bench.check_in("a")).round_number == 2


async def test_a_cancelled_run_stays_cancelled_and_keeps_its_rounds(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=3))
        await bench.play("a", 1, echo)
        await bench.until(lambda run: run.completed_rounds == 1)
        bench.runs.cancel("run")
        assert bench.runs.cancel("run").state is RunState.CANCELLED
        with pytest.raises(WrongState, match="cancelled"):
            bench.runs.resume("run")
        assert len(await model_after(bench, 0)) > 1000
        with pytest.raises(NotFound, match="round 2"):
            await model_after(bench, 2)


async def test_watching_shows_every_round_once_and_ends_with_the_run(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=3))
        seen: list[int] = []

        async def watch() -> RunState:
            async for run, rounds in bench.runs.watch("run", 1):  # noqa: B007
                seen.extend(item.number for item in rounds)
            return run.state

        watching = asyncio.create_task(watch())
        await bench.play("a", 3, echo)
        assert await asyncio.wait_for(watching, 30) is RunState.COMPLETED
        assert seen == [2, 3]


async def test_two_runs_share_a_fleet(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2, devices=2), "one")
        await bench.create(make_spec(rounds=2, devices=2), "two")
        await asyncio.gather(bench.play("a", 4, echo), bench.play("b", 4, echo))
        for run_id in ("one", "two"):
            run = await bench.until(lambda run: run.state is RunState.COMPLETED, run_id)
            assert run.completed_rounds == 2


async def test_a_restarted_coordinator_continues_its_round_to_the_same_model(
    tmp_path: Path,
) -> None:
    spec = make_spec(rounds=3, devices=2, refresh_every=2)

    async def undisturbed() -> bytes:
        async with workbench(tmp_path / "undisturbed") as bench:
            await bench.create(spec)
            await asyncio.gather(bench.play("a", 4, nudge(1.0)), bench.play("b", 4, nudge(3.0)))
            await bench.until(lambda run: run.state is RunState.COMPLETED)
            return await model_after(bench, 3)

    async def restarted() -> bytes:
        store = PoolStoreInMemory()

        async def part(bench: Workbench, a: int, b: int) -> None:
            await asyncio.gather(bench.play("a", a, nudge(1.0)), bench.play("b", b, nudge(3.0)))

        folder = tmp_path / "restarted"
        async with workbench(folder, store=store) as bench:
            await bench.create(spec)
            await part(bench, 2, 1)  # only a has synthesised for round 2
        async with workbench(folder, store=store) as bench:
            await part(bench, 1, 1)  # only a has trained in round 2
        async with workbench(folder, store=store) as bench:
            await part(bench, 1, 2)
            await bench.until(lambda run: run.state is RunState.COMPLETED)
            return await model_after(bench, 3)

    assert await undisturbed() == await restarted()


async def test_after_a_restart_a_round_waits_for_devices_to_come_back(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b")
        await bench.create(make_spec(devices=1))
        a, _ = await asyncio.gather(*waiting)
        await bench.do("a", a, echo)
    async with workbench(tmp_path) as bench:
        # A faulty coordinator would close the round now.
        await bench.until(lambda run: run.progress == Progress(1, Phase.TRAINING, 1, 2))
        await bench.play("b", 1, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert bench.runs.rounds("run")[0].device_ids == ("a", "b")


async def test_resuming_after_a_restart_starts_the_deadline_anew(tmp_path: Path) -> None:
    now = [1000.0]
    async with workbench(tmp_path, clock=lambda: now[0]) as bench:
        waiting = await bench.arrive("a", "b")
        await bench.create(make_spec(devices=1, deadline_seconds=50, lease_seconds=500))
        a, b = await asyncio.gather(*waiting)
        await bench.do("a", a, echo)
        bench.runs.pause("run")
    now[0] += 1000.0
    async with workbench(tmp_path, clock=lambda: now[0], away_seconds=1.0) as bench:
        bench.runs.resume("run")
        key = PhaseKey("run", 1, "train")
        assert bench.records.phases.get(key).deadline_at == now[0] + 50
        await bench.check_in("b")
        await bench.do("b", b, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert bench.runs.rounds("run")[0].device_ids == ("a", "b")


async def test_a_run_does_not_count_on_a_device_busy_with_another_run(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(), "one")
        await bench.create(make_spec(), "two")
        pinned = await bench.check_ins.check_in("a", PROFILE, 30.0, "one")
        assert isinstance(pinned, Assignment)
        await bench.do("a", pinned, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED, "one")
        progress = bench.runs.get("two").progress
        assert progress is not None
        assert progress.phase is Phase.WAITING_FOR_DEVICES
        with pytest.raises(NotFound, match="'three'"):
            await bench.check_ins.check_in("b", PROFILE, 0.0, "three")
        assert bench.app.registry.view("two").present == {}


async def test_stopping_does_not_wait_for_a_store_that_hangs_and_loses_nothing(
    tmp_path: Path,
) -> None:
    store = PoolStoreInMemory()
    store.hangs = True
    async with workbench(tmp_path, store=store) as bench:
        await bench.create(make_spec(refresh_every=1))
        await eventually(lambda: store.calls)
    async with workbench(tmp_path) as bench:
        assert bench.runs.get("run").state is RunState.RUNNING
        await bench.play("a", 2, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)


async def test_opening_twice_drives_a_run_once(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec())
        bench.drivers.show_ended_runs()
        drivers = [t for t in threading.enumerate() if t.name == "run-run"]
        assert len(drivers) == 1


async def test_a_watcher_is_disconnected_when_the_coordinator_stops(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec())

        began = asyncio.Event()

        async def watch() -> None:
            async for _ in bench.runs.watch("run", 0):
                began.set()

        watching = asyncio.create_task(watch())
        await began.wait()
        bench.runs.end_watches()
        with pytest.raises(Unavailable, match="stopping"):
            await asyncio.wait_for(watching, 30)


async def test_a_model_too_large_to_move_is_refused_before_it_is_made(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        spec = make_spec()
        model = replace(spec.recipe.model, classes=2**31 - 1)
        with pytest.raises(InvalidInput, match="HFMDS_MAX_BLOB_BYTES"):
            await bench.create(replace(spec, recipe=replace(spec.recipe, model=model)))


async def test_a_generator_too_large_to_move_is_refused_before_it_is_made(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        for method in (
            FedGen(hidden_size=2**16, noise_size=2**16),
            FedGan(gan_rounds=1, width=2**12),
        ):
            with pytest.raises(InvalidInput, match=method.name):
                await bench.create(make_spec(rounds=2, method=method))
        await bench.create(make_spec(method=FedGen()))


async def test_a_cohort_with_more_updates_than_may_be_open_is_refused(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        most = open_files_allowed() - OWN_FILES
        with pytest.raises(InvalidInput, match=f"{most} updates"):
            await bench.create(make_spec(cohort_size=most + 1))
        await bench.create(make_spec(cohort_size=most))


async def test_no_step_begins_in_a_cancelled_run(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2))
        await bench.play("a", 1, echo)
        await bench.until(lambda run: run.completed_rounds == 1)
        done = bench.records.rounds.get("run", 1)
        bench.records.runs.cancel("run", 1.0)
        before = bench.overview.events("run")[1]
        with pytest.raises(WrongState, match="'run'"):
            bench.records.rounds.begin("run", 3, 2.0)
        phase = PhaseSpec(PhaseKey("run", 3, "train"), done.weights, "", make_spec().policy)
        with pytest.raises(WrongState, match="'run'"):
            bench.records.phases.open(phase, ["a"], 2.0)
        late = replace(done, number=2)
        assert bench.records.runs.complete_round("run", late, 2.0).completed_rounds == 1
        assert bench.overview.events("run")[1] == before


async def test_a_driver_of_a_cancelled_run_ends_without_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with workbench(tmp_path) as bench:
        begin = RoundRecords.begin

        def cancelled_just_before(
            rounds: RoundRecords, run_id: str, number: int, now: float
        ) -> None:
            bench.records.runs.cancel(run_id, now)
            begin(rounds, run_id, number, now)

        monkeypatch.setattr(RoundRecords, "begin", cancelled_just_before)
        await bench.create(make_spec())
        run = await bench.until(lambda run: run.state is RunState.CANCELLED)
        assert run.state_reason == ""
        await eventually(lambda: not bench.drivers.drives("run"))
        kinds = [event.kind for event in bench.overview.events("run")[1]]
        assert kinds == ["run-created", "run-cancelled"]
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
