"""The effect of the method on the rounds of a run, through the coordinator's classes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.runs.evaluation import Learning
from hfmds.algorithm.methods.method_registry import first_checkpoint
from hfmds.domain.digest import Digest
from hfmds.domain.learning import Weights
from hfmds.domain.methods import FedGan, FedGen, FedMix, Method
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.runs import RunState
from hfmds.domain.tasks import SynthesiseWork, TrainWork
from hfmds.errors import ConfigurationError, InvalidInput, LimitExceeded
from hfmds.wire.tensors import StoredWeights, encode_weights
from tests.coordinator.workbench import (
    PoolStoreInMemory,
    Workbench,
    echo,
    make_spec,
    model_after,
    nudge,
    workbench,
)

GAN = FedGan(gan_rounds=1, gan_batch_size=2, noise_size=2, width=1, samples_per_device=3)
GENERATOR = FedGen(hidden_size=4, noise_size=2, generator_steps=1)


async def weights_after(bench: Workbench, folder: Path, round_number: int) -> Weights:
    path = folder / "model"
    path.write_bytes(await model_after(bench, round_number))
    stored = StoredWeights(path, "model")
    return {name: stored[name] for name in stored}


def changed(before: Weights, after: Weights) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not np.array_equal(before[name], after[name])}


async def test_a_gan_is_learned_first_and_then_the_classifier_with_its_pool(tmp_path: Path) -> None:
    store = PoolStoreInMemory()
    async with workbench(tmp_path, store=store) as bench:
        spec = make_spec(rounds=2, method=GAN)
        await bench.create(spec)
        tasks = await bench.play("a", 3, nudge(1.0))
        (pool_id,) = store.sealed
        assert [task.work for task in tasks] == [
            TrainWork(None),
            SynthesiseWork(pool_id),
            TrainWork(f"snapshot-of-{pool_id}"),
        ]
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        start = first_checkpoint(spec.recipe).weights
        first = await weights_after(bench, tmp_path, 1)
        second = await weights_after(bench, tmp_path, 2)
        gan = {name for name in start if name.startswith("gan/")}
        assert gan
        assert changed(start, first) == gan
        assert changed(first, second) == start.keys() - gan
        assert store.opened[pool_id].max_samples_per_device == 3
        assert store.opened[pool_id].method == "fedgan"
        assert not store.opened[pool_id].with_shares


async def test_a_generator_is_learned_by_the_coordinator(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        spec = make_spec(method=GENERATOR)
        await bench.create(spec)

        def counts_one_of_each(weights: Weights, _: object) -> Weights:
            kept = {name: weights[name] for name in weights if "generator/" not in name}
            return {**kept, "fedgen/label_counts": np.ones(3, np.float32)}

        await bench.play("a", 1, counts_one_of_each)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        start = first_checkpoint(spec.recipe).weights
        learned = changed(start, await weights_after(bench, tmp_path, 1))
        assert "generator/output.weight" in learned
        assert {name for name in learned if "/" not in name} == set()


async def test_a_pool_of_averages_takes_their_class_shares(tmp_path: Path) -> None:
    store = PoolStoreInMemory()
    async with workbench(tmp_path, store=store) as bench:
        await bench.create(make_spec(method=FedMix(samples_per_device=4)))
        await bench.play("a", 2, echo)
        (opened,) = store.opened.values()
        assert (opened.method, opened.max_samples_per_device) == ("fedmix", 4)
        assert opened.with_shares


async def test_a_pool_is_opened_with_the_recipes_policy_and_its_normalisation(
    tmp_path: Path,
) -> None:
    store = PoolStoreInMemory()
    async with workbench(tmp_path, store=store) as bench:
        spec = make_spec(refresh_every=1)
        policy = PoolPolicy(psnr_nearest_max_db=20, leakage_action="refuse")
        await bench.create(replace(spec, recipe=replace(spec.recipe, pool=policy)))
        await bench.play("a", 1, echo)
        (opened,) = store.opened.values()
        assert opened.policy == policy
        assert opened.normalisation == spec.recipe.normalisation
        assert (opened.seal_quorum, opened.seal_deadline_seconds) == (0, 0)


@pytest.mark.parametrize(
    ("method", "spoil", "complaint"),
    [
        (GAN, "classifier.bias", r": tensors not wanted: 'classifier.bias'; send"),
        (GENERATOR, "generator/output.bias", r"not wanted: 'generator/output.bias'; send"),
        (GENERATOR, "-fedgen/label_counts", r"missing: 'fedgen/label_counts'; send those"),
    ],
)
async def test_an_update_has_exactly_what_its_round_trains(
    tmp_path: Path, method: Method, spoil: str, complaint: str
) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2, method=method))
        assignment = await bench.check_in("a")
        weights = bench.weights(assignment)
        update = dict(nudge(1.0)(weights, assignment))
        if spoil.startswith("-"):
            del update[spoil[1:]]
        else:
            update[spoil] = weights[spoil]
        with pytest.raises(InvalidInput, match=complaint):
            await bench.submit("a", assignment, encode_weights(update))
        assert await bench.do("a", assignment, nudge(1.0)) is False  # a correct update still counts


async def test_impossible_class_counts_are_refused_at_submission(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(method=GENERATOR))
        assignment = await bench.check_in("a")
        with pytest.raises(InvalidInput, match=": its class counts must not"):
            await bench.do("a", assignment, echo)  # all counts are 0


async def test_an_update_is_limited_to_the_size_of_the_trained_weights(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(method=FedGen(hidden_size=2048)))
        assignment = await bench.check_in("a")
        all_of_it = Digest("0" * 64, assignment.weights.size_bytes)
        with pytest.raises(LimitExceeded, match=str(all_of_it.size_bytes)):
            await bench.uploads.query("a", assignment.task_id, all_of_it)
        assert await bench.do("a", assignment, nudge(1.0)) is False


def test_a_coordinator_without_torch_says_so_before_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=re.escape("hfmds-fl[server,torch]")):
        Learning()
