"""Asynchronous rounds: scripted arrivals against an independent version of the formula."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.records.acceptance import HandedIn
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.states import TaskState
from hfmds.algorithm.models.building import initial_weights
from hfmds.algorithm.seeds import derive_seed
from hfmds.domain.digest import digest_of
from hfmds.domain.learning import Weights
from hfmds.domain.methods import FedGan
from hfmds.domain.round_policy import Asynchronous, RoundPolicy
from hfmds.domain.runs import RunSpec, RunState, Staleness
from hfmds.domain.tasks import Assignment, RetryLater, SynthesiseWork
from hfmds.errors import InvalidInput, TooLate, WrongState
from hfmds.storage.blobs import FolderBlobs
from hfmds.wire.tensors import StoredWeights, encode_weights
from tests.coordinator.workbench import (
    MODEL,
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

A = 0.5  # the exponent
SIZE = 2  # of the buffer


def spec(rounds: int = 3, devices: int = 2, refresh_every: int = 0, **settings: float) -> RunSpec:
    mode = Asynchronous(
        buffer_size=int(settings.pop("buffer_size", SIZE)),
        staleness_exponent=A,
        **{"max_staleness": 5, **settings},  # type: ignore[arg-type]
    )
    return make_spec(rounds=rounds, devices=devices, refresh_every=refresh_every, asynchronous=mode)


async def weights_after(bench: Workbench, folder: Path, number: int) -> Weights:
    path = folder / "model"
    path.write_bytes(await model_after(bench, number))
    stored = StoredWeights(path, "model")
    return {name: stored[name] for name in stored}


async def round_is(bench: Workbench, number: int) -> None:
    """Wait until the run trains in this round."""

    def trains() -> bool:
        current = bench.records.rounds.in_progress("run")
        return bool(current and current.number == number and current.state.name == "TRAINING")

    await eventually(trains)


def flushed(models: Sequence[Weights], results: Sequence[tuple[int, float]]) -> Weights:
    """FedBuff's step from the last of the models, by results (round they began at, their nudge).

    w + 1/K * sum of (change of the weights) / (1 + staleness)^a
    """
    now = len(models)  # models[0] is the model of round 1
    step = sum(learned / (1 + now - began) ** A for began, learned in results) / len(results)
    return {name: w + step for name, w in models[-1].items()}


def assert_near(actual: Weights, expected: Weights) -> None:
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, rtol=0, atol=1e-5)


async def test_results_count_in_the_open_round_weighted_by_the_age_of_their_model(
    tmp_path: Path,
) -> None:
    """Devices a and b fill rounds 1 and 2. Device c begins in round 1 and submits in round 3."""

    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b", "c")
        await bench.create(spec(rounds=4, devices=2))
        a, b, c = await asyncio.gather(*waiting)
        assert {task.round_number for task in (a, b, c)} == {1}
        for number in (1, 2):
            await bench.do("a", a, nudge(1.0))
            await bench.do("b", b, nudge(2.0))
            a, b = await bench.check_in("a"), await bench.check_in("b")
            assert (a.round_number, b.round_number) == (number + 1, number + 1)
        await bench.do("a", a, nudge(1.0))
        await bench.do("c", c, nudge(5.0))  # its model is two rounds old
        c = await bench.check_in("c")
        assert c.round_number == 4
        await bench.do("b", b, nudge(2.0))  # one round old
        await bench.do("c", c, nudge(5.0))
        await bench.until(lambda run: run.state is RunState.COMPLETED)

        models = [initial_weights(MODEL, derive_seed(0, "weights"))]
        for results in (
            [(1, 1.0), (1, 2.0)],
            [(2, 1.0), (2, 2.0)],
            [(3, 1.0), (1, 5.0)],
            [(3, 2.0), (4, 5.0)],
        ):
            models.append(flushed(models, results))
        for number in (1, 2, 3, 4):
            assert_near(await weights_after(bench, tmp_path, number), models[number])
        rounds = bench.runs.rounds("run")
        assert [item.device_ids for item in rounds] == [
            ("a", "b"),
            ("a", "b"),
            ("a", "c"),
            ("b", "c"),
        ]
        assert [item.staleness for item in rounds] == [
            Staleness(0.0, 0),
            Staleness(0.0, 0),
            Staleness(1.0, 2),
            Staleness(0.5, 1),
        ]


async def test_a_restart_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    """Device c begins in round 1 and submits in round 2 to a restarted coordinator."""

    async def scenario(folder: Path, restarts: bool) -> bytes:
        async with workbench(folder) as bench:
            waiting = await bench.arrive("a", "b", "c")
            await bench.create(spec(rounds=2))
            a, b, c = await asyncio.gather(*waiting)
            await bench.do("a", a, nudge(1.0))
            if not restarts:
                await bench.do("b", b, nudge(2.0))
                await round_is(bench, 2)
                await bench.do("c", c, nudge(3.0))
                await bench.do("a", await bench.check_in("a"), nudge(4.0))
                await bench.until(lambda run: run.state is RunState.COMPLETED)
                return await model_after(bench, 2)
        async with workbench(folder) as bench:
            await bench.arrive_and_leave("a")
            assert await bench.check_in("b") == b
            await bench.do("b", b, nudge(2.0))
            await round_is(bench, 2)
            await bench.do("c", c, nudge(3.0))
        async with workbench(folder) as bench:
            await bench.do("a", await bench.check_in("a"), nudge(4.0))
            await bench.until(lambda run: run.state is RunState.COMPLETED)
            assert bench.runs.rounds("run")[1].staleness == Staleness(0.5, 1)
            return await model_after(bench, 2)

    undisturbed = await scenario(tmp_path / "undisturbed", restarts=False)
    assert await scenario(tmp_path / "restarted", restarts=True) == undisturbed


async def test_results_between_rounds_count_in_the_next_round(tmp_path: Path) -> None:
    folder = tmp_path / "bench"
    async with workbench(folder) as bench:
        waiting = await bench.arrive("a", "b", "c")
        await bench.create(spec(rounds=2))
        a, b, c = await asyncio.gather(*waiting)
        bench.runs.pause("run")  # the driver takes no step
        for name, task, amount in (("a", a, 1.0), ("b", b, 2.0), ("c", c, 3.0)):
            assert await bench.do(name, task, nudge(amount)) is False
        bench.runs.resume("run")
        await round_is(bench, 2)
        await bench.do("a", await bench.check_in("a"), nudge(4.0))
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        rounds = bench.runs.rounds("run")
        assert [item.device_ids for item in rounds] == [("a", "b"), ("a", "c")]
        first = initial_weights(MODEL, derive_seed(0, "weights"))
        models = [first, flushed([first], [(1, 1.0), (1, 2.0)])]
        models.append(flushed(models, [(2, 4.0), (1, 3.0)]))
        assert_near(await weights_after(bench, tmp_path, 2), models[2])


async def test_a_second_result_of_a_device_counts_in_the_next_round(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b", "c")
        await bench.create(spec(rounds=3))
        a, b, c = await asyncio.gather(*waiting)
        await bench.do("b", b, echo)
        await bench.do("c", c, echo)
        await round_is(bench, 2)
        await bench.do("a", a, nudge(1.0))  # a result of round 1 in round 2
        again = await bench.check_in("a")
        assert again.round_number == 2
        await bench.do("a", again, nudge(2.0))  # not in round 2 a second time
        assert bench.runs.get("run").completed_rounds == 1
        await bench.do("b", await bench.check_in("b"), echo)
        await round_is(bench, 3)
        await bench.do("c", await bench.check_in("c"), echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        rounds = bench.runs.rounds("run")
        assert [item.device_ids for item in rounds] == [("b", "c"), ("a", "b"), ("a", "c")]


async def test_a_task_with_a_too_old_model_ends(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b", "slow")
        await bench.create(spec(rounds=4, max_staleness=1))
        a, b, slow = await asyncio.gather(*waiting)
        await bench.do("a", a, echo)
        await bench.do("b", b, echo)
        await round_is(bench, 2)
        await bench.leases.renew("slow", slow.task_id)  # one round old is still accepted
        for name in ("a", "b"):
            await bench.do(name, await bench.check_in(name), echo)
        await round_is(bench, 3)
        with pytest.raises(TooLate, match="too old") as refusal:
            await bench.do("slow", slow, echo)
        assert refusal.value.reason == "stale"
        assert (await bench.check_in("slow")).round_number == 3


async def test_the_devices_that_work_at_once_are_bounded(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        names = ["a", "b", "c", "d"]
        await bench.arrive_and_leave(*names)
        await bench.create(spec(rounds=3, buffer_size=3, concurrency=2))
        await round_is(bench, 1)

        async def working() -> dict[str, Assignment]:
            held = {}
            for name in names:
                outcome = await bench.check_ins.check_in(name, PROFILE, 0.0, "")
                if isinstance(outcome, Assignment):
                    held[name] = outcome
                else:
                    assert isinstance(outcome, RetryLater)
            return held

        held: dict[str, Assignment] = {}
        while len(held) < 2:
            held = await working()
        (first, task), _ = held.items()
        await bench.do(first, task, echo)
        held = {}
        while len(held) < 2:
            held = await working()
        assert len(held) == 2
        assert first not in held  # another device took the place


async def test_a_buffer_that_does_not_fill_is_flushed_at_the_deadline(tmp_path: Path) -> None:
    now = [1000.0]
    async with workbench(tmp_path, clock=lambda: now[0]) as bench:
        waiting = await bench.arrive("a", "b")
        patient = spec(rounds=1, devices=1)
        await bench.create(replace(patient, policy=replace(patient.policy, lease_seconds=900)))
        a, b = await asyncio.gather(*waiting)
        await bench.do("a", a, echo)
        now[0] += 60.0
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert bench.runs.rounds("run")[0].device_ids == ("a",)
        with pytest.raises(TooLate, match="has completed") as refusal:
            await bench.do("b", b, echo)
        assert refusal.value.reason == "completed"


async def test_updates_are_kept_until_they_count_and_models_forever(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b", "c")
        await bench.create(spec(rounds=2))
        a, b, c = await asyncio.gather(*waiting)
        of_c = nudge(7.0)(bench.weights(c), c)
        update_of_c = encode_weights(of_c)
        bench.put_update(c, update_of_c)
        await bench.do("a", a, nudge(1.0))
        await bench.do("b", b, nudge(2.0))
        await round_is(bench, 2)  # round 2 begins after the deletion
        blobs = [path for path in (tmp_path / "blobs" / "run").iterdir() if path.is_file()]
        assert len(blobs) == 3  # w^0, w^1 and the update of c
        assert await bench.submit("c", c, update_of_c) is False
        await bench.do("a", await bench.check_in("a"), nudge(1.0))
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        await asyncio.to_thread(bench.drivers.close, 10.0)  # it frees space after its record
        folder = tmp_path / "blobs" / "run"
        await eventually(lambda: sum(path.is_file() for path in folder.rglob("*")) == 2)  # w^1, w^2


async def test_refreshes_of_the_pool_stay_synchronous(tmp_path: Path) -> None:
    store = PoolStoreInMemory()
    async with workbench(tmp_path, store=store) as bench:
        await bench.create(spec(rounds=2, refresh_every=2))
        a, b = await asyncio.gather(bench.play("a", 3, echo), bench.play("b", 3, echo))
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        for tasks in (a, b):
            assert [isinstance(task.work, SynthesiseWork) for task in tasks] == [0, 1, 0]
        assert [len(batches) for batches in store.sealed.values()] == [2]


async def test_a_task_of_an_ended_round_is_still_leased_to_its_device(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b", "c")
        await bench.create(spec(rounds=2))
        a, b, c = await asyncio.gather(*waiting)
        await bench.do("a", a, echo)
        await bench.do("b", b, echo)
        await round_is(bench, 2)
        assert TaskRecords(bench.app.engine).get("c", c.task_id).state is TaskState.LEASED
        assert await bench.check_in("c") == c  # without a second task of round 2


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"cohort_size": 2}, "leave it out, and set asynchronous.concurrency"),
        ({"rounds": 5, "method": FedGan(gan_rounds=1)}, "fedgan trains other weights"),
        ({"devices": 3}, "buffer_size is 2, below policy.minimum_devices 3"),
    ],
)
def test_recipes_that_asynchronous_rounds_cannot_run_are_refused(
    change: dict[str, object], complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        make_spec(asynchronous=Asynchronous(2), **change)  # type: ignore[arg-type]
    narrow = RoundPolicy(minimum_devices=2, asynchronous=Asynchronous(2, concurrency=1))
    with pytest.raises(InvalidInput, match=r"concurrency.*policy\.minimum_devices"):
        RunSpec(make_spec().recipe, narrow)


async def test_identical_updates_of_two_devices_both_count(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b", "c")
        await bench.create(spec(rounds=2))
        a, b, c = await asyncio.gather(*waiting)
        same = encode_weights(nudge(1.0)(bench.weights(a), a))
        await bench.submit("a", a, same)
        await bench.do("c", c, nudge(2.0))
        await round_is(bench, 2)  # the update of a is deleted now
        assert not bench.app.contents.of("run").blobs.contains(digest_of(same))
        await bench.submit("b", b, same)
        await bench.play("c", 1, nudge(3.0))
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert [done.device_ids for done in bench.runs.rounds("run")] == [
            ("a", "c"),
            ("b", "c"),
        ]


async def test_bytes_deleted_just_before_acceptance_are_requested_again(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a")
        await bench.create(spec(rounds=1, devices=1, buffer_size=1))
        [a] = await asyncio.gather(*waiting)
        tasks, update = TaskRecords(bench.app.engine), a.weights
        empty = FolderBlobs(tmp_path / "empty")
        (outcome,) = tasks.accept_each([HandedIn("a", a.task_id, update, b"", empty)], 1.0)
        assert isinstance(outcome, WrongState)
        assert tasks.get("a", a.task_id).state is TaskState.LEASED


async def test_no_update_is_accepted_while_updates_are_dropped(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b")
        await bench.create(spec(rounds=2, devices=1, buffer_size=2))
        a, _ = await asyncio.gather(*waiting)
        with bench.records.retention.unneeded("run", [a.weights]) as unneeded:
            assert unneeded == []
            accepting = asyncio.create_task(bench.do("a", a, nudge(1.0)))
            await asyncio.sleep(0.3)
            assert not accepting.done()
        await accepting
