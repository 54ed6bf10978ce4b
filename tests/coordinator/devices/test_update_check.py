"""Updates that the coordinator accepts, combines and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hfmds.algorithm.aggregation.compression import pack, split_memory, unpacked
from hfmds.algorithm.local_work import TrainedModel
from hfmds.algorithm.methods.method_registry import first_checkpoint, method_of
from hfmds.algorithm.seeds import generator
from hfmds.domain.digest import Digest
from hfmds.domain.learning import Checkpoint, Update, Weights
from hfmds.domain.recipe import AggregationRecipe, Recipe
from hfmds.domain.runs import RunSpec, RunState
from hfmds.domain.tasks import Assignment
from hfmds.errors import InvalidInput, LimitExceeded
from hfmds.wire.tensors import encode_update, encode_weights
from tests.coordinator.workbench import (
    Workbench,
    echo,
    make_spec,
    model_after,
    nudge,
    trained,
    workbench,
)
from tests.support.waiting import eventually

DEVICES = ("a", "b", "c")


def spec_with(rounds: int = 1, devices: int = 1, **changes: Any) -> RunSpec:
    spec = make_spec(rounds=rounds, devices=devices)
    return replace(spec, recipe=replace(spec.recipe, **changes))


def learned(weights: Weights, assignment: Assignment, device_id: str) -> TrainedModel:
    """Return an update that depends on the device, the round and the weights."""
    random = generator(assignment.seed, device_id)
    return TrainedModel(
        {
            n: w + np.float32(0.01) * random.standard_normal(w.shape, np.float32)
            for n, w in trained(weights, assignment).items()
        },
        5,
        1.5,
    )


class Device:
    """A device that trains, compresses and remembers like a real one."""

    def __init__(self, device_id: str) -> None:
        self.device_id = device_id
        self.residual: Weights = {}
        self.sent: dict[int, Mapping[str, NDArray[Any]]] = {}

    async def work(self, bench: Workbench, rounds: int) -> None:
        for _ in range(rounds):
            task = await bench.check_in(self.device_id)
            weights = bench.weights(task)
            packed, memory = pack(
                task.recipe, weights, learned(weights, task, self.device_id), self.residual
            )
            self.residual = split_memory(memory)[1]
            self.sent[task.round_number] = packed
            await bench.submit(self.device_id, task, encode_update(packed))


def expected_after(recipe: Recipe, devices: list[Device]) -> Weights:
    """Compute the last model from the updates with the algorithm only."""
    point = first_checkpoint(recipe)
    for t in range(1, recipe.rounds + 1):
        updates = [
            Update(d.device_id, unpacked(recipe, d.sent[t], point.weights), 5, 1.5) for d in devices
        ]
        done = method_of(recipe).aggregate(t, point.weights, updates, point.server_state)
        point = Checkpoint(t, done.weights, None, done.server_state)
    return point.weights


@pytest.mark.parametrize(
    "changes",
    [
        {"compression": "fp16"},
        {"compression": "int8"},
        {"aggregation": AggregationRecipe(optimiser="fedavgm")},
        {
            "compression": "int8",
            "aggregation": AggregationRecipe(
                rule="multi_krum", hostile_devices=0, clip_norm=1.0, optimiser="fedadam"
            ),
        },
    ],
    ids=["fp16", "int8", "fedavgm", "all of it"],
)
async def test_a_restart_in_the_middle_changes_nothing(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    spec = spec_with(rounds=4, devices=3, **changes)
    devices = [Device(device_id) for device_id in DEVICES]

    async with workbench(tmp_path) as bench:
        await bench.create(spec)
        await asyncio.gather(*(device.work(bench, 2) for device in devices))
        await bench.until(lambda run: run.completed_rounds == 2)
    async with workbench(tmp_path) as bench:
        await asyncio.gather(*(device.work(bench, 2) for device in devices))
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        # The sweep after the last round leaves four models and the last server state.
        blobs = bench.app.contents.of("run").blobs
        kept = 4 + (spec.recipe.aggregation.optimiser != "none")
        await eventually(lambda: len(list(blobs.digests())) == kept)
        model = await model_after(bench, 4)
    assert model == encode_weights(expected_after(spec.recipe, devices))


async def test_a_device_left_out_by_multi_krum_is_not_in_the_round(tmp_path: Path) -> None:
    krum = AggregationRecipe(rule="multi_krum", hostile_devices=1)
    async with workbench(tmp_path) as bench:
        await bench.create(spec_with(devices=5, aggregation=krum))
        await asyncio.gather(
            *(bench.play(d, 1, nudge(0.01 * i)) for i, d in enumerate("abde")),
            bench.play("c", 1, nudge(-50.0)),
        )
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        (only,) = bench.runs.rounds("run")
        assert only.device_ids == ("a", "b", "d", "e")
        assert only.traffic.sent_bytes == 15  # of all five devices


# --- refusals -----------------------------------------------------------------------------------


def refused(bench: Workbench, reason: str) -> float:
    name = "hfmds_coordinator_updates_refused_total"
    return bench.registry.get_sample_value(name, {"reason": reason}) or 0.0


def of_int8(task: Assignment, weights: Weights) -> dict[str, NDArray[Any]]:
    packed, _ = pack(task.recipe, weights, learned(weights, task, "a"), {})
    return dict(packed)


@pytest.mark.parametrize(
    ("name", "value", "reason", "complaint"),
    [
        ("hidden.weight", "f4", "malformed", "tensor 'hidden.weight' is F32, it must be I8"),
        ("hidden.weight", "f2", "malformed", "tensor 'hidden.weight' is F16, it must be I8"),
        ("conv1.bias", "i1", "malformed", "tensor 'conv1.bias' is I8, it must be F32"),
        ("hidden.weight", "flat", "malformed", r"'hidden.weight' has shape \[\d+\], the model's"),
        ("scale/hidden.weight", None, "malformed", "missing: 'scale/hidden.weight'; send those"),
        ("scale/other", 1.0, "malformed", "not wanted: 'scale/other'; send those"),
        ("scale/hidden.weight", np.nan, "not finite", "'hidden.weight' has values that are not"),
        ("scale/hidden.weight", np.inf, "not finite", "'hidden.weight' has values that are not"),
        ("scale/hidden.weight", 3e38, "not finite", "'hidden.weight' has values that are not"),
        ("conv1.bias", "nan", "not finite", "'conv1.bias' has values that are not finite"),
    ],
)
async def test_an_unacceptable_update_is_refused_and_counted(
    tmp_path: Path, name: str, value: object, reason: str, complaint: str
) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(spec_with(compression="int8"))
        task = await bench.check_in("a")
        packed = of_int8(task, bench.weights(task))
        match value:
            case None:
                del packed[name]
            case "flat":
                packed[name] = packed[name].reshape(-1)
            case "nan":
                packed[name] = np.full_like(packed[name], np.nan)
            case str():
                packed[name] = packed[name].astype(value)
            case _:
                packed[name] = np.array(value, np.float32)
        with pytest.raises(InvalidInput, match=f"update [0-9a-f]+.*: .*{complaint}"):
            await bench.submit("a", task, encode_update(packed))
        assert refused(bench, reason) == 1
        # A correct update still counts, without a trace of the bad one.
        good = encode_update(of_int8(task, bench.weights(task)))
        assert await bench.submit("a", task, good) is False
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert refused(bench, reason) == 1


async def test_a_malformed_file_is_refused_and_counted(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec())
        task = await bench.check_in("a")
        with pytest.raises(InvalidInput, match=r"update [0-9a-f]{12}/10"):
            await bench.submit("a", task, b"not at all")
        assert refused(bench, "malformed") == 1


@pytest.mark.parametrize(("compression", "value_bytes"), [("none", 4), ("fp16", 2), ("int8", 1)])
async def test_the_size_limit_of_an_update_follows_its_compression(
    tmp_path: Path, compression: str, value_bytes: int
) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(spec_with(compression=compression))
        task = await bench.check_in("a")
        weights = bench.weights(task)
        values = sum(w.size for w in weights.values())
        # The limit leaves room for small tensors and the header.
        largest = value_bytes * values + 4 * 512 + (1 << 20)
        too_large = Digest("0" * 64, largest)
        with pytest.raises(LimitExceeded, match=str(largest)):
            await bench.uploads.query("a", task.task_id, too_large)
        assert refused(bench, "too large") == 1


async def test_a_hostile_update_of_nans_does_not_stop_the_round(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        spec = spec_with(devices=2)
        await bench.create(spec)
        waiting = await bench.arrive("a", "b", "c")
        tasks = dict(zip("abc", await asyncio.gather(*waiting), strict=True))
        with pytest.raises(InvalidInput, match="values that are not finite"):
            await bench.do("b", tasks["b"], nudge(np.nan))
        await bench.leases.report_failure("b", tasks["b"].task_id, "refused")
        await bench.do("a", tasks["a"], echo)
        await bench.do("c", tasks["c"], echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        assert bench.runs.rounds("run")[0].device_ids == ("a", "c")
        assert refused(bench, "not finite") == 1
