"""Models of a run: evaluation, the best model, retention, and runs that start from a model."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from pathlib import Path

import pytest

from hfmds.domain.learning import DeviceEvaluation, Evaluation
from hfmds.domain.round_policy import Asynchronous, EarlyStop, EvaluationByDevices, Retention
from hfmds.domain.runs import ModelVersion, Phase, RunState
from hfmds.domain.tasks import Assignment, EvaluateWork
from hfmds.errors import Conflict, InvalidInput, NotFound, TooLate, WrongState
from tests.coordinator.workbench import Workbench, echo, make_spec, model_after, nudge, workbench

BY_TWO = EvaluationByDevices(devices=2)


async def train(bench: Workbench, *devices: str) -> None:
    for device in devices:
        assert (await bench.play(device, 1, nudge(1.0)))[0].work != EvaluateWork()


async def to_evaluate(bench: Workbench, device: str) -> Assignment:
    assignment = await bench.check_in(device)
    assert assignment.work == EvaluateWork()
    return assignment


async def rounds_of(bench: Workbench, *accuracies: float) -> None:
    """Complete a round for each accuracy, with one device that trains and evaluates."""
    for accuracy in accuracies:
        await train(bench, "a")
        task = await to_evaluate(bench, "a")
        await bench.evaluate("a", task, Evaluation(accuracy, 1.0, 4))


def kept(bench: Workbench) -> list[int]:
    return [item.number for item in bench.runs.rounds("run") if not item.model_dropped]


def content(bench: Workbench, run_id: str = "run") -> set[str]:
    return {digest.sha256 for digest in bench.app.contents.of(run_id).blobs.digests()}


# --- evaluation by devices ----------------------------------------------------------------------


async def test_device_evaluations_are_averaged_by_samples(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b")
        await bench.create(make_spec(devices=2, evaluation=BY_TWO))
        for device, task in zip("ab", waiting, strict=True):
            await bench.do(device, await task, nudge(1.0))
        first, second = await to_evaluate(bench, "a"), await to_evaluate(bench, "b")
        shown = (
            await bench.until(lambda run: run.progress and run.progress.expected == 2)
        ).progress
        assert shown is not None
        assert (shown.phase, shown.done) == (Phase.EVALUATING, 0)
        await bench.evaluate("a", first, Evaluation(0.5, 1.0, 30), traffic=11)
        await bench.evaluate("b", second, Evaluation(1.0, 2.0, 10), traffic=13)
        run = await bench.until(lambda run: run.state is RunState.COMPLETED)
        done = run.last_round
        assert done is not None
        assert done.device_evaluation == DeviceEvaluation(0.625, 1.25, 40, 2)
        assert first.weights == second.weights == done.weights
        assert done.traffic.received_bytes == 2 * 7 + 11 + 13
        value = bench.registry.get_sample_value
        assert value("hfmds_coordinator_device_accuracy_ratio", {"run": "run"}) == 0.625


async def test_an_evaluation_counts_once_and_a_second_is_refused(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b")
        await bench.create(make_spec(devices=2, evaluation=BY_TWO))
        for device, task in zip("ab", waiting, strict=True):
            await bench.do(device, await task, echo)
        task = await to_evaluate(bench, "a")
        assert not await bench.evaluate("a", task, Evaluation(0.5, math.nan, 3))
        assert await bench.evaluate("a", task, Evaluation(0.5, math.nan, 3), traffic=9)
        with pytest.raises(Conflict):
            await bench.evaluate("a", task, Evaluation(0.75, math.nan, 3))
        with pytest.raises(WrongState, match="is to evaluate, not to train"):
            await bench.submit_chunks("a", task, task.weights, [])


async def test_devices_that_cannot_evaluate_still_train(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2, evaluation=EvaluationByDevices(devices=1)))
        await train(bench, "a")
        task = await to_evaluate(bench, "a")
        await bench.leases.report_failure("a", task.task_id, "no")
        await bench.until(lambda run: run.completed_rounds == 1)
        await train(bench, "a")
        with pytest.raises(TooLate):
            await bench.evaluate("a", task, Evaluation(0.5, 1.0, 1))
        run = await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert [item.device_evaluation for item in bench.runs.rounds("run")] == [None, None]
        assert run.best_round == 0


async def test_every_nth_round_and_the_last_are_evaluated(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        every = EvaluationByDevices(devices=1, every_rounds=2)
        await bench.create(make_spec(rounds=5, evaluation=every))
        kinds = [task.work for task in await bench.play("a", 8, echo)]
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        asked = [n for n, work in enumerate(kinds, start=1) if work == EvaluateWork()]
        assert asked == [3, 6, 8]
        rounds = bench.runs.rounds("run")
        measured = [item.number for item in rounds if item.device_evaluation]
        assert measured == [2, 4, 5]


async def test_an_evaluation_continues_after_a_restart(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b")
        await bench.create(make_spec(devices=2, evaluation=BY_TWO))
        for device, task in zip("ab", waiting, strict=True):
            await bench.do(device, await task, nudge(1.0))
        early = await to_evaluate(bench, "a")
        await bench.evaluate("a", early, Evaluation(1.0, 0.0, 1))
    async with workbench(tmp_path) as bench:
        late = await to_evaluate(bench, "b")
        assert late.weights == early.weights
        await bench.evaluate("b", late, Evaluation(0.0, 1.0, 3))
        run = await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert run.last_round is not None
        assert run.last_round.device_evaluation == DeviceEvaluation(0.25, 0.75, 4, 2)


# --- the best, and the end ----------------------------------------------------------------------


@pytest.mark.usefixtures("both_databases")
async def test_the_best_round_is_the_first_of_equals(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=5, evaluation=EvaluationByDevices(devices=1)))
        assert bench.runs.get("run").best_round == 0
        await rounds_of(bench, 0.25, 0.75, 0.5, 0.75)
        run = await bench.until(lambda run: run.completed_rounds == 4)
        assert run.best_round == 2


async def test_the_best_accuracy_is_shown_also_after_a_restart(tmp_path: Path) -> None:
    def shown(bench: Workbench) -> float | None:
        name = "hfmds_coordinator_best_accuracy_ratio"
        return bench.registry.get_sample_value(name, {"run": "run"})

    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=5, evaluation=EvaluationByDevices(devices=1)))
        await rounds_of(bench, 0.75, 0.5)
        await bench.until(lambda run: run.completed_rounds == 2)
    async with workbench(tmp_path) as bench:
        await rounds_of(bench, 0.25)
        await bench.until(lambda run: run.completed_rounds == 3)
        assert shown(bench) == 0.75


@pytest.mark.usefixtures("both_databases")
async def test_a_run_without_improvement_stops_early_with_the_reason(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        stop = EarlyStop(patience_rounds=2, min_improvement=0.125)
        by_one = EvaluationByDevices(devices=1)
        await bench.create(make_spec(rounds=9, evaluation=by_one, early_stop=stop))
        await rounds_of(bench, 0.25, 0.5, 0.5625, 0.625)  # 0.625 is at most 0.125 higher
        run = await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert run.completed_rounds == 4
        assert run.best_round == 4
        assert run.state_reason == (
            "stopped early: accuracy has not risen by more than 12.5% in 2 evaluated rounds; "
            "the best is 62.5% after round 4"
        )
    async with workbench(tmp_path) as bench:
        assert bench.runs.get("run").state is RunState.COMPLETED
        assert len(bench.runs.rounds("run")) == 4


async def test_stopping_early_needs_evaluations(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        with pytest.raises(InvalidInput, match=r"evaluation\.devices.*HFMDS_HELD_OUT"):
            await bench.create(make_spec(early_stop=EarlyStop(1)))


# --- keeping and dropping -----------------------------------------------------------------------


@pytest.mark.usefixtures("both_databases")
async def test_the_last_the_best_and_every_nth_model_are_kept(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        retention = Retention(keep_last=2, keep_every=4)
        by_one = EvaluationByDevices(devices=1)
        await bench.create(make_spec(rounds=7, evaluation=by_one, retention=retention))
        await rounds_of(bench, 0.25, 0.75, 0.5, 0.5, 0.5, 0.5, 0.5)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert kept(bench) == [2, 4, 6, 7]
        await asyncio.to_thread(bench.drivers.close, 10.0)
        rounds = bench.runs.rounds("run")
        assert content(bench) == {rounds[n - 1].weights.sha256 for n in (2, 4, 6, 7)}
        assert await model_after(bench, 4)
        with pytest.raises(NotFound, match="after rounds 2, 4, 6, 7"):
            await model_after(bench, 3)


async def test_a_model_equal_to_a_dropped_one_is_kept(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=3, retention=Retention(keep_last=1)))
        await bench.play("a", 3, echo)  # all rounds have the same bytes
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        await asyncio.to_thread(bench.drivers.close, 10.0)
        assert kept(bench) == [3]
        assert await model_after(bench, 3)


@pytest.mark.usefixtures("both_databases")
async def test_the_model_of_an_open_task_is_kept_until_its_result_counts(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("fast", "slow")
        mode = Asynchronous(buffer_size=1)
        retention = Retention(keep_last=1)
        await bench.create(make_spec(rounds=4, asynchronous=mode, retention=retention))
        fast, _ = [await task for task in waiting]
        await bench.do("fast", fast, nudge(1.0))
        await bench.until(lambda run: run.completed_rounds == 1)
        begun = await bench.check_in("fast")  # at the model of round 1
        await bench.do("slow", await bench.check_in("slow"), nudge(1.0))
        await bench.until(lambda run: run.completed_rounds == 2)
        await bench.do("slow", await bench.check_in("slow"), nudge(1.0))
        await bench.until(lambda run: run.completed_rounds == 3)
        assert begun.weights.sha256 in content(bench)
        assert kept(bench) == [1, 3]
        await bench.do("fast", begun, nudge(1.0))
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert kept(bench) == [4]


async def test_models_that_could_not_be_removed_in_time_are_removed_at_the_next_start(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=9, retention=Retention(keep_last=1)))
        await bench.play("a", 2, nudge(1.0))
        await bench.until(lambda run: run.completed_rounds == 2)
        path = bench.app.contents.of("run").blobs.local_path
        model = path(bench.records.rounds.get("run", 2).weights).read_bytes()
        await bench.play("a", 1, nudge(1.0))
        await bench.until(lambda run: run.completed_rounds == 3)
    async with workbench(tmp_path) as bench:
        await bench.play("a", 1, nudge(1.0))
        gone = bench.records.rounds.get("run", 2).weights
        await asyncio.to_thread(bench.drivers.close, 10.0)
        bench.app.contents.of("run").blobs.put_bytes(model)  # as after a kill before the deletion
        assert gone.sha256 in content(bench)
    async with workbench(tmp_path) as bench:
        await bench.check_in("a")
        assert gone.sha256 not in content(bench)


# --- starting from a model ----------------------------------------------------------------------


async def test_a_run_starts_from_another_runs_model_and_does_not_need_it_later(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2))
        await bench.play("a", 2, nudge(1.0))
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        spec = dataclasses.replace(make_spec(seed=5), start_from=ModelVersion("run", 1))
        await bench.create(spec, "next")
        blobs = bench.app.contents.of("run").blobs
        for digest in list(blobs.digests()):
            blobs.delete(digest)
        task = await bench.check_in("a")
        assert task.run_id == "next"
        assert task.weights == bench.records.rounds.get("run", 1).weights
        assert await bench.create(spec, "next")  # a repeated call copies nothing
        await bench.do("a", task, echo)
        run = await bench.until(lambda run: run.state is RunState.COMPLETED, "next")
        assert run.spec.start_from == ModelVersion("run", 1)


async def test_a_run_cannot_start_from_a_missing_model_or_another_form(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=3, retention=Retention(keep_last=1)))
        await bench.play("a", 2, nudge(1.0))
        await bench.until(lambda run: run.completed_rounds == 2)
        spec = make_spec()
        for start, error, complaint in (
            (ModelVersion("nobody", 1), NotFound, "no run 'nobody'"),
            (ModelVersion("run", 3), NotFound, "no completed round 3"),
            (ModelVersion("run", 1), NotFound, "kept are those after rounds 2"),
        ):
            with pytest.raises(error, match=complaint):
                await bench.create(dataclasses.replace(spec, start_from=start), "next")
        model = dataclasses.replace(spec.recipe.model, classes=7)
        recipe = dataclasses.replace(spec.recipe, model=model)
        other = dataclasses.replace(spec, recipe=recipe, start_from=ModelVersion("run", 2))
        with pytest.raises(InvalidInput, match="classes=7"):
            await bench.create(other, "next")
        assert [run.run_id for run in bench.runs.list()] == ["run"]
