from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from hfmds.algorithm.methods.method_registry import first_checkpoint
from hfmds.algorithm.methods.related.fedgan import FedGanMethod
from hfmds.algorithm.methods.related.fedgen import FedGenMethod
from hfmds.algorithm.models.building import (
    build_model,
    initial_weights,
    load_weights,
    model_with,
    weights_of,
)
from hfmds.domain.methods import FedGan, FedGen
from hfmds.domain.recipe import ModelSpec
from hfmds.errors import InvalidInput
from tests.algorithm.examples import RECIPE, SPEC, assert_same, weights


def test_initial_weights_depend_on_the_seed_only():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = initial_weights(SPEC, 1)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    assert_same(first, initial_weights(SPEC, 1))
    assert not np.array_equal(first["conv1.weight"], initial_weights(SPEC, 2)["conv1.weight"])


def test_weights_survive_the_round_trip_and_are_copies():
    given = weights(3)
    model = model_with(SPEC, given)
    taken = weights_of(model.to(memory_format=torch.channels_last))
    assert_same(taken, given)
    assert all(a.dtype == np.float32 and a.flags.c_contiguous for a in taken.values())
    taken["conv1.bias"][:] = 7
    assert_same(weights_of(model), given)


def test_networks_with_the_same_weights_share_no_memory():
    given = weights(3)
    one, other = model_with(SPEC, given), model_with(SPEC, given)
    with torch.no_grad():
        for parameter in one.parameters():
            assert parameter.requires_grad
            parameter.fill_(7)
    assert_same(given, weights(3))
    assert_same(weights_of(other), given)
    assert_same(weights_of(model_with(SPEC, given)), given)


def test_weights_of_another_model_are_refused():
    model = build_model(SPEC)
    other = dict(weights())
    other["extra"] = other.pop("conv1.bias")
    with pytest.raises(InvalidInput, match=r"\['conv1.bias'\].*\['extra'\]"):
        load_weights(model, other)
    wrong_shape = dict(weights()) | {"classifier.bias": np.zeros(10, np.float32)}
    with pytest.raises(InvalidInput, match=r"'classifier.bias' has shape \[10\]"):
        load_weights(model, wrong_shape)


def test_initial_weights_are_the_seeds_also_when_other_threads_build_models() -> None:
    spec = ModelSpec(channels=1, height=16, width=16)
    expected = initial_weights(spec, 3)
    with ThreadPoolExecutor(3) as threads:
        for _ in range(10):
            made = threads.submit(initial_weights, spec, 3)
            for _ in range(2):
                threads.submit(build_model, spec)
            for name, values in made.result().items():
                assert np.array_equal(values, expected[name]), name


def test_initial_weights_are_the_seeds_also_when_other_threads_build_other_networks() -> None:
    """As in a coordinator with several runs, where FedGen's server step is one of the threads."""
    gan = replace(RECIPE, method=FedGan(gan_rounds=1, width=4))
    gen = replace(RECIPE, method=FedGen(hidden_size=8, generator_steps=1))
    expected = initial_weights(SPEC, 3)
    made = {recipe.method.name: first_checkpoint(recipe).weights for recipe in (gan, gen)}

    def build() -> None:
        FedGanMethod(gan)._networks_with(made["fedgan"])
        FedGenMethod(gen)._generator_with(made["fedgen"])

    with ThreadPoolExecutor(3) as threads:
        for _ in range(10):
            first = threads.submit(initial_weights, SPEC, 3)
            others = [threads.submit(build) for _ in range(4)]
            assert_same(first.result(), expected)
            for other in others:
                other.result()


def test_weights_are_float32_whatever_a_network_keeps() -> None:
    model = nn.Module()
    model.register_buffer("count", torch.tensor(7))
    model.register_buffer("values", torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    model.register_buffer("mask", torch.tensor([True, False]))
    taken = weights_of(model)
    expected = {"count": np.float32(7), "values": [1.5, -2.0], "mask": [1.0, 0.0]}
    assert all(array.dtype == np.float32 for array in taken.values())
    load_weights(model, {name: np.array(array, np.float32) for name, array in expected.items()})
    assert_same(weights_of(model), taken)
    assert model.state_dict()["values"].dtype == torch.bfloat16
    for name, array in expected.items():
        np.testing.assert_array_equal(taken[name], array)
