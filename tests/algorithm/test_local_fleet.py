from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from hfmds.algorithm.federation import Fleet, federate
from hfmds.algorithm.local_work import LocalWork, Synthesis, TrainedModel
from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.pixels import levels
from hfmds.algorithm.pool import merge
from hfmds.algorithm.seeds import task_seed
from hfmds.algorithm.simulation.local_fleet import InProcess, LocalFleet
from hfmds.domain.learning import Checkpoint, LabelledImages, Weights
from hfmds.domain.methods import Moon
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.round_policy import EvaluationByDevices
from hfmds.errors import InvalidInput, NotFound
from tests.algorithm.examples import HFMDS, RECIPE, assert_same, images, recipe_for, weights, work

SHARDS = {"b": images(6, seed=1), "a": images(9, seed=2), "c": images(5, seed=3)}
NOTHING = images(0)
START = Checkpoint(0, weights())
MOON = replace(RECIPE, method=Moon())


def fleet() -> LocalFleet:
    return LocalFleet(HFMDS, SHARDS, held_out=images(8, seed=9))


class WatchedWorkers:
    """Does the work in process and keeps the tasks."""

    def __init__(self) -> None:
        self.works: list[LocalWork] = []

    def train(self, works: Iterable[LocalWork]) -> Iterator[TrainedModel]:
        return InProcess().train(self._watched(works))

    def synthesise(self, works: Iterable[LocalWork]) -> Iterator[Synthesis]:
        return InProcess().synthesise(self._watched(works))

    def _watched(self, works: Iterable[LocalWork]) -> Iterator[LocalWork]:
        for one in works:
            self.works.append(one)
            yield one


def test_one_round_is_each_device_by_itself_with_its_task_seed():
    local: Fleet = fleet()
    result = next(federate(local, HFMDS, START))  # refreshes at round 1
    method = method_of(HFMDS)
    made = {
        d: method.synthesise(work(HFMDS, shard, seed=task_seed(7, "synthesise", 1, d)))
        for d, shard in SHARDS.items()
    }
    pool = merge({d: s.batch for d, s in made.items()}).images
    trained = [
        method.train(work(HFMDS, SHARDS[d], pool=pool, seed=task_seed(7, "train", 1, d))).weights
        for d in ("a", "b", "c")
    ]
    for name, array in result.checkpoint.weights.items():
        np.testing.assert_allclose(array, np.mean([w[name] for w in trained], axis=0), atol=1e-7)
    assert result.cohort == ("a", "b", "c")
    assert result.checkpoint.pool
    assert result.checkpoint.pool.samples == 15
    assert result.evaluation
    assert result.evaluation.samples == 8


@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_resumed_run_ends_as_an_uninterrupted_one(stop_after: int):
    """Also through a refresh: its prototypes must start from the refresh before, not its own."""
    local = fleet()
    whole = [r.checkpoint for r in federate(local, HFMDS, START)]
    resumed = [r.checkpoint for r in federate(local, HFMDS, whole[stop_after - 1])]
    assert [c.round_number for c in resumed] == list(range(stop_after + 1, 4))
    assert_same(resumed[-1].weights, whole[-1].weights)
    assert resumed[-1].pool == whole[-1].pool


# --- what devices remember ------------------------------------------------------------------------


def test_prototypes_carry_over_from_refresh_to_refresh():
    remembering, fresh = fleet(), fleet()
    remembering.synthesise(1, weights(seed=1))
    remembering.synthesise(3, weights(seed=2))
    fresh.synthesise(3, weights(seed=2))
    with_memory, without = remembering.health(3)["a"], fresh.health(3)["a"]
    assert with_memory.real_margin == without.real_margin
    assert with_memory.hard_margin != without.hard_margin


def train(local: LocalFleet, round_number: int, *cohort: str) -> dict[str, Weights]:
    sent = local.train_devices(cohort, round_number, weights(round_number), None)
    return {update.device_id: update.weights for update in sent}


def test_a_device_is_given_what_it_remembers_of_its_last_round_whenever_that_was():
    workers = WatchedWorkers()
    local = LocalFleet(MOON, SHARDS, workers=workers)
    first = train(local, 1, "a", "b")
    second = train(local, 2, "b")
    train(local, 4, "a", "b", "c")
    assert [one.round_number for one in workers.works] == [1, 1, 2, 4, 4, 4]
    of_a, of_b, of_b_again, last_of_a, last_of_b, of_c = (one.memory for one in workers.works)
    assert of_a == of_b == of_c == {}
    assert_same(of_b_again, first["b"])
    assert_same(last_of_a, first["a"])
    assert_same(last_of_b, second["b"])


def test_a_replayed_round_is_given_what_the_round_before_it_left():
    workers = WatchedWorkers()
    local = LocalFleet(MOON, {"a": SHARDS["a"]}, workers=workers)
    sent = [train(local, t, "a")["a"] for t in (1, 2, 3, 3)]
    assert_same(sent[2], sent[3])
    assert_same(workers.works[3].memory, sent[1])


def test_two_rounds_of_memory_are_kept_however_long_a_run_is():
    local = LocalFleet(MOON, SHARDS)
    for t in (1, 2, 3):
        train(local, t, "a")
    train(local, 3, "b")
    kept = {tuple(name.split("/")[:4]) for name in local.state(None)}
    assert kept == {
        ("memory", "train", "a", "2"),
        ("memory", "train", "a", "3"),
        ("memory", "train", "b", "3"),
        ("loss", "train", "a", "2"),
        ("loss", "train", "a", "3"),
        ("loss", "train", "b", "3"),
    }


def test_the_two_kinds_of_work_do_not_share_a_memory():
    workers = WatchedWorkers()
    local = LocalFleet(HFMDS, {"a": SHARDS["a"]}, workers=workers)
    pool = local.synthesise(1, weights())
    list(local.train(1, weights(), pool))
    local.synthesise(3, weights())
    made, trained, made_again = workers.works
    assert made.memory == trained.memory == {}
    assert sorted(made_again.memory) == sorted({str(c) for c in SHARDS["a"].labels})


def test_local_prototypes_are_what_training_has_left():
    workers = WatchedWorkers()
    recipe = replace(HFMDS, method=replace(HFMDS.method, local_prototypes=True))
    local = LocalFleet(recipe, {"a": SHARDS["a"]}, workers=workers)
    pool = local.synthesise(1, weights())  # before any training: by the global model
    for t in (1, 2):
        list(local.train(t, weights(t), pool))
    local.synthesise(3, weights())
    made, trained, trained_again, made_again = (one.memory for one in workers.works)
    assert made == trained == {}
    assert sorted(trained_again) == sorted({str(c) for c in SHARDS["a"].labels})
    left = method_of(recipe).train(workers.works[2]).memory
    assert_same(made_again, left)
    assert any((made_again[c] != trained_again[c]).any() for c in made_again)


# --- pools, and carrying over ---------------------------------------------------------------------


def test_the_pool_is_lent_by_its_snapshot_id():
    local = fleet()
    pool = local.synthesise(1, weights())
    lent = local.pool_batch(pool)
    assert len(lent) == pool.samples == 15
    assert pool.leakage.paired_mean == pytest.approx(lent.psnr_paired.mean())
    with pytest.raises(NotFound, match="'round-1'"):
        fleet().pool_batch(pool)
    with pytest.raises(NotFound, match="no refresh at round 2"):
        local.health(2)


def test_a_pool_is_carried_over_with_its_class_shares_and_its_leakage():
    recipe = recipe_for("fedmix")
    local, other = LocalFleet(recipe, SHARDS), LocalFleet(recipe, SHARDS)
    pool = local.synthesise(1, weights())
    other.restore(local.state(pool))
    given, taken = local.pool_batch(pool), other.pool_batch(pool)
    assert taken.images.shares is not None
    assert given.images.shares is not None
    np.testing.assert_array_equal(taken.images.shares, given.images.shares)
    np.testing.assert_array_equal(taken.images.pixels, given.images.pixels)
    np.testing.assert_array_equal(taken.images.labels, given.images.labels)
    np.testing.assert_array_equal(taken.psnr_paired, given.psnr_paired)
    np.testing.assert_array_equal(taken.psnr_nearest, given.psnr_nearest)
    np.testing.assert_array_equal(taken.ssim_paired, given.ssim_paired)
    np.testing.assert_array_equal(taken.ssim_nearest, given.ssim_nearest)


@pytest.mark.parametrize("name", ["hfmds", "fedmix"])
def test_a_pool_in_half_precision_is_the_same_but_finer_and_is_carried_over(name: str):
    recipe = recipe_for(name)
    coarse, fine, other = (
        LocalFleet(replace(recipe, pool=PoolPolicy(pixel_type=pixel_type)), SHARDS)
        for pixel_type in ("uint8", "fp16", "fp16")
    )
    pool = fine.synthesise(1, weights())
    made = fine.pool_batch(pool).images.pixels
    expected = coarse.pool_batch(coarse.synthesise(1, weights())).images.pixels
    assert made.dtype == np.float16
    np.testing.assert_allclose(levels(made), expected, atol=0.6)
    other.restore(fine.state(pool))
    np.testing.assert_array_equal(other.pool_batch(pool).images.pixels, made, strict=True)


def test_what_only_a_store_can_do_is_refused():
    with pytest.raises(InvalidInput, match="have no synthesis store"):
        LocalFleet(replace(HFMDS, pool=PoolPolicy(refresh="accumulate")), SHARDS)


def test_a_state_that_is_taken_over_replaces_what_was_remembered():
    local, other = LocalFleet(MOON, SHARDS), LocalFleet(MOON, SHARDS)
    train(local, 1, "a")
    train(other, 1, "a", "b")
    other.restore(local.state(None))
    assert other.state(None).keys() == local.state(None).keys()
    assert {name.split("/")[2] for name in other.state(None)} == {"a"}


# --- who takes part -------------------------------------------------------------------------------


def test_a_device_without_images_is_never_available():
    recipe = replace(HFMDS, cohort_size=2)
    local = LocalFleet(recipe, {**SHARDS, "0-empty": NOTHING, "z-empty": NOTHING})
    assert [candidate.device_id for candidate in local.candidates(1)] == ["a", "b", "c"]
    for result in federate(local, recipe, START):
        assert set(result.cohort) <= {"a", "b", "c"}
        assert result.checkpoint.pool
        assert result.checkpoint.pool.samples == 15


def test_candidates_have_their_samples_and_the_loss_of_their_last_training_also_when_restored():
    recipe = replace(HFMDS, cohort_size=2, rounds=2)
    local = LocalFleet(recipe, SHARDS)
    assert {c.device_id: c.samples for c in local.candidates(1)} == {
        device: len(shard) for device, shard in SHARDS.items()
    }
    assert {c.last_loss for c in local.candidates(1)} == {None}
    first = next(iter(federate(local, recipe, START)))
    known = {c.device_id: c.last_loss for c in local.candidates(2) if c.last_loss is not None}
    assert set(known) == set(first.cohort)
    assert np.mean(list(known.values())) == pytest.approx(first.training_loss)
    assert {c.last_loss for c in local.candidates(1)} == {None}  # when round 1 is replayed
    restored = LocalFleet(recipe, SHARDS)
    restored.restore(local.state(None))
    assert restored.candidates(2) == local.candidates(2)


def test_without_a_held_out_set_there_is_no_evaluation():
    assert LocalFleet(HFMDS, SHARDS).evaluate(1, weights()) is None


def test_an_unfit_shard_is_refused_at_once():
    wide = LabelledImages(np.zeros((1, 1, 16, 17), np.uint8), np.zeros(1, np.int64))
    with pytest.raises(InvalidInput, match=r"'b'.*\[1, 16, 17\]"):
        LocalFleet(HFMDS, {**SHARDS, "b": wide})
    with pytest.raises(InvalidInput, match="device id 'a/b' has a slash"):
        LocalFleet(HFMDS, {"a/b": SHARDS["a"]})
    for nobody in ({}, {"a": NOTHING}):
        with pytest.raises(InvalidInput, match="at least one device with images"):
            LocalFleet(HFMDS, nobody)


# --- where it computes ----------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["synthesise", "train", "evaluate", "evaluate_on_devices"])
def test_everything_is_computed_where_the_fleet_is_told(what):
    """Torch's meta device computes shapes only: whatever runs there has no numbers to give."""
    every_round = EvaluationByDevices(devices=1)
    nowhere = LocalFleet(
        HFMDS, SHARDS, images(8, seed=9), evaluation=every_round, compute_device="meta"
    )
    tasks = {
        "synthesise": lambda: nowhere.synthesise(1, weights()),
        "train": lambda: list(nowhere.train(1, weights(), None)),
        "evaluate": lambda: nowhere.evaluate(1, weights()),
        "evaluate_on_devices": lambda: nowhere.evaluate_on_devices(1, weights()),
    }
    with pytest.raises((NotImplementedError, RuntimeError), match=r"[Mm]eta"):
        tasks[what]()


# --- when learning diverges -----------------------------------------------------------------------


def test_divergence_names_round_device_and_step():
    wild = replace(RECIPE, training=replace(RECIPE.training, learning_rate=1e20))
    local = LocalFleet(wild, SHARDS)
    message = r"round 1, device 'a': training diverged: the loss is (nan|inf) at step 2 of 6; lower"
    with pytest.raises(InvalidInput, match=message):
        next(federate(local, wild, START))


def test_divergence_of_a_synthesis_names_round_and_device():
    broken = {**weights(), "hidden.bias": np.full(512, np.nan, np.float32)}
    with pytest.raises(
        InvalidInput,
        match="round 3, device 'a'",
    ):
        fleet().synthesise(3, broken)


def test_the_last_good_checkpoint_is_there_to_go_on_from_after_divergence():
    """A device's data turn bad in round 2; with the old ones the run goes on as if nothing was."""
    recipe = replace(RECIPE, rounds=2)
    good = list(federate(LocalFleet(recipe, SHARDS), recipe, START))
    bad = replace(recipe, training=replace(RECIPE.training, learning_rate=1e20))
    with pytest.raises(InvalidInput, match=r"round 2, device 'a'"):
        next(federate(LocalFleet(bad, SHARDS), bad, good[0].checkpoint))
    again = next(federate(LocalFleet(recipe, SHARDS), recipe, good[0].checkpoint))
    assert_same(again.checkpoint.weights, good[1].checkpoint.weights)
