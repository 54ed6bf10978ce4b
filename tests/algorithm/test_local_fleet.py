from __future__ import annotations

import numpy as np
import pytest

from hfmds.algorithm.federation import Fleet, federate
from hfmds.algorithm.local_fleet import LocalFleet
from hfmds.algorithm.pool import merge
from hfmds.algorithm.seeds import task_seed
from hfmds.algorithm.synthesis import synthesise
from hfmds.algorithm.training import train
from hfmds.algorithm.types import Checkpoint, LabelledImages
from hfmds.errors import InvalidInput, NotFound
from tests.algorithm.examples import HFMDS, assert_same, images, weights

SHARDS = {"b": images(6, seed=1), "a": images(9, seed=2), "c": images(5, seed=3)}
START = Checkpoint(0, weights())


def fleet() -> LocalFleet:
    return LocalFleet(HFMDS, SHARDS, held_out=images(8, seed=9))


def test_one_round_is_each_device_by_itself_with_its_task_seed():
    local: Fleet = fleet()
    result = next(federate(local, HFMDS, START))  # refreshes at round 1
    made = {
        d: synthesise(HFMDS, weights(), shard, {}, task_seed(7, "synthesise", 1, d))
        for d, shard in SHARDS.items()
    }
    pool = merge({d: s.batch for d, s in made.items()}).images
    trained = [
        train(HFMDS, weights(), SHARDS[d], pool, task_seed(7, "train", 1, d)).weights
        for d in ("a", "b", "c")
    ]
    for name, array in result.checkpoint.weights.items():
        np.testing.assert_allclose(array, np.mean([w[name] for w in trained], axis=0), atol=1e-7)
    assert result.cohort == ("a", "b", "c")
    assert result.checkpoint.pool
    assert result.checkpoint.pool.samples == 15
    assert result.evaluation
    assert result.evaluation.samples == 8


def test_same_seed_same_weights():
    first = [r.checkpoint for r in federate(fleet(), HFMDS, START)][-1]
    again = [r.checkpoint for r in federate(fleet(), HFMDS, START)][-1]
    assert_same(first.weights, again.weights)
    assert first.pool == again.pool


@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_resumed_run_ends_as_an_uninterrupted_one(stop_after: int):
    """Also through a refresh: its prototypes must start from the refresh before, not its own."""
    local = fleet()
    whole = [r.checkpoint for r in federate(local, HFMDS, START)]
    resumed = [r.checkpoint for r in federate(local, HFMDS, whole[stop_after - 1])]
    assert [c.round_number for c in resumed] == list(range(stop_after + 1, 4))
    assert_same(resumed[-1].weights, whole[-1].weights)
    assert resumed[-1].pool == whole[-1].pool


def test_prototypes_carry_over_from_refresh_to_refresh():
    remembering, fresh = fleet(), fleet()
    remembering.synthesise(1, weights(seed=1))
    remembering.synthesise(3, weights(seed=2))
    fresh.synthesise(3, weights(seed=2))
    with_memory, without = remembering.health(3)["a"], fresh.health(3)["a"]
    assert with_memory.real_margin == without.real_margin
    assert with_memory.hard_margin != without.hard_margin


def test_the_pool_is_lent_by_its_snapshot_id():
    local = fleet()
    pool = local.synthesise(1, weights())
    lent = local.pool_images(pool)
    assert len(lent) == pool.samples == 15
    with pytest.raises(NotFound, match=r"no pool 'round-1': it keeps pools in memory only"):
        fleet().pool_images(pool)
    with pytest.raises(NotFound, match="no refresh at round 2"):
        local.health(2)


def test_without_a_held_out_set_there_is_no_evaluation():
    assert LocalFleet(HFMDS, SHARDS).evaluate(weights()) is None


def test_an_unfit_shard_is_refused_at_once():
    wide = LabelledImages(np.zeros((1, 1, 16, 17), np.uint8), np.zeros(1, np.int64))
    with pytest.raises(InvalidInput, match=r"the shard of device 'b': images are \[1, 16, 17\]"):
        LocalFleet(HFMDS, {**SHARDS, "b": wide})
    with pytest.raises(InvalidInput, match="at least one device"):
        LocalFleet(HFMDS, {})
