"""What holds for all methods: the same seed gives the same numbers, also over a restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from hfmds.algorithm.federation import federate
from hfmds.algorithm.methods.fedavg import FedAvgMethod
from hfmds.algorithm.methods.method_registry import first_checkpoint, method_of, weights_bytes
from hfmds.algorithm.methods.method_server import MethodServer, server_of
from hfmds.algorithm.models.weight_groups import classifier_of
from hfmds.algorithm.simulation.local_fleet import LocalFleet
from hfmds.domain.learning import Checkpoint, Pool, RoundResult, Update, Weights
from hfmds.domain.methods import METHODS
from hfmds.domain.recipe import ModelSpec, Recipe
from hfmds.errors import InvalidInput
from tests.algorithm.examples import EVERY_METHOD, assert_same, images, recipe_for

SHARDS = {"b": images(6, seed=1), "a": images(9, seed=2), "c": images(5, seed=3)}
HELD_OUT = images(8, seed=9)
every_method = pytest.mark.parametrize("name", sorted(EVERY_METHOD))


def four_rounds(name: str) -> Recipe:
    """Two of the three devices in each round: what they remember is not always of the last one."""
    return replace(recipe_for(name), rounds=4, cohort_size=2)


def run(fleet: LocalFleet, recipe: Recipe, start: Checkpoint) -> Iterator[RoundResult]:
    return federate(fleet, recipe, start)


def assert_same_rounds(left: Sequence[RoundResult], right: Sequence[RoundResult]) -> None:
    """Equal to the bit, in everything the loop reports."""
    assert len(left) == len(right) > 0
    for one, other in zip(left, right, strict=True):
        assert_same(one.checkpoint.weights, other.checkpoint.weights)
        assert one.checkpoint.round_number == other.checkpoint.round_number
        assert one.checkpoint.pool == other.checkpoint.pool
        assert replace(one, checkpoint=other.checkpoint) == other


def test_no_method_is_left_out():
    assert EVERY_METHOD.keys() == METHODS.keys()
    assert all(EVERY_METHOD[name].name == name for name in EVERY_METHOD)


@every_method
def test_methods_say_whether_their_server_learns(name: str):
    method, server = method_of(recipe_for(name)), server_of(recipe_for(name))
    assert method.settings.server_learns == (type(method).aggregate is not MethodServer.aggregate)
    assert type(server) is (type(method) if method.settings.server_learns else MethodServer)


@every_method
def test_methods_say_whether_their_devices_need_torch(name: str):
    method = type(method_of(recipe_for(name)))
    only_in_torch = (method.train, method.torch_loss) != (
        FedAvgMethod.train,
        FedAvgMethod.torch_loss,
    )
    assert METHODS[name].needs_torch == only_in_torch


@every_method
def test_a_run_carried_over_to_another_process_goes_on_to_the_bit(name: str):
    recipe = four_rounds(name)
    start = first_checkpoint(recipe)
    whole = list(run(LocalFleet(recipe, SHARDS, HELD_OUT), recipe, start))

    before = LocalFleet(recipe, SHARDS, HELD_OUT)
    first_half = list(islice(run(before, recipe, start), 2))
    assert_same_rounds(first_half, whole[:2])  # same seed, same numbers
    checkpoint = first_half[-1].checkpoint
    saved = {n: array.copy() for n, array in before.state(checkpoint.pool).items()}

    after = LocalFleet(recipe, SHARDS, HELD_OUT)
    after.restore(saved)
    assert_same_rounds(list(run(after, recipe, checkpoint)), whole[2:])


@every_method
def test_a_round_that_is_replayed_gives_what_it_gave(name: str):
    recipe = four_rounds(name)
    fleet = LocalFleet(recipe, SHARDS, HELD_OUT)
    checkpoint = first_checkpoint(recipe)
    for _ in range(recipe.rounds):
        first = next(run(fleet, recipe, checkpoint))
        again = next(run(fleet, recipe, checkpoint))
        assert_same_rounds([again], [first])
        checkpoint = first.checkpoint


@every_method
def test_another_seed_gives_other_numbers(name: str):
    recipe = four_rounds(name)
    start = first_checkpoint(recipe)
    one, other = (
        next(run(LocalFleet(r, SHARDS), r, start)).checkpoint.weights
        for r in (recipe, replace(recipe, seed=8))
    )
    assert any(not np.array_equal(one[n], other[n]) for n in one)


@every_method
def test_all_methods_start_with_the_same_classifier(name: str):
    start = first_checkpoint(recipe_for(name))
    assert start.round_number == 0
    assert_same(classifier_of(start.weights), first_checkpoint(recipe_for("fedavg")).weights)


@every_method
def test_the_size_of_all_its_weights_is_known_without_making_them(name: str):
    start = first_checkpoint(recipe_for(name))
    counted = sum(4 * array.size for array in start.weights.values())
    assert weights_bytes(recipe_for(name)) == counted


@pytest.mark.parametrize("side", [2**20, 2**31 - 1])
def test_weights_too_large_to_be_counted_are_refused(side: int):
    model = ModelSpec("paper-cnn", 1, side, side, 2**31 - 1)
    huge = replace(recipe_for("fedgan"), model=model, class_names=())
    with pytest.raises(InvalidInput, match="fedgan are too large"):
        weights_bytes(huge)


class WatchedFleet(LocalFleet):
    """Keeps what its devices send."""

    updates: dict[int, list[Update]]

    def train(self, round_number: int, weights: Weights, pool: Pool | None) -> Iterator[Update]:
        sent = list(super().train(round_number, weights, pool))
        self.updates = {**getattr(self, "updates", {}), round_number: sent}
        return iter(sent)


@every_method
def test_devices_send_exactly_what_the_method_trains_and_shares(name: str):
    recipe = four_rounds(name)
    fleet = WatchedFleet(recipe, SHARDS)
    for result in run(fleet, recipe, first_checkpoint(recipe)):
        t, given = result.checkpoint.round_number, result.checkpoint.weights
        for sent in fleet.updates[t]:
            assert sent.weights.keys() == {n for n in given if recipe.method.trains(n, t)}
            for n, array in sent.weights.items():
                assert array.shape == given[n].shape
                assert array.dtype == np.float32
        assert result.refreshed == recipe.method.refreshes(t)
        if result.checkpoint.pool:
            made = fleet.pool_batch(result.checkpoint.pool)
            assert 0 < len(made) <= 3 * recipe.method.samples_per_device
            assert (made.images.shares is not None) == recipe.method.with_shares
    assert sorted(fleet.updates) == [1, 2, 3, 4]
