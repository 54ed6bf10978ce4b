from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from hfmds.algorithm.models import (
    PaperCNN,
    build_model,
    initial_weights,
    load_weights,
    model_with,
    weights_of,
)
from hfmds.algorithm.types import ModelSpec
from hfmds.errors import InvalidInput
from tests.algorithm.examples import SPEC, assert_same, weights


def test_paper_cnn_has_the_papers_dimensions_on_cifar():
    shapes = {name: array.shape for name, array in initial_weights(ModelSpec(), 0).items()}
    assert shapes == {
        "conv1.weight": (32, 3, 5, 5),
        "conv1.bias": (32,),
        "conv2.weight": (64, 32, 5, 5),
        "conv2.bias": (64,),
        "hidden.weight": (512, 1600),
        "hidden.bias": (512,),
        "classifier.weight": (10, 512),
        "classifier.bias": (10,),
    }


def test_features_are_not_negative_and_lead_to_the_logits():
    model = build_model(ModelSpec(channels=2, height=16, width=20, classes=4))
    images = torch.randn(3, 2, 16, 20)
    features = model.features(images)
    assert features.shape == (3, 512)
    assert features.min() >= 0
    torch.testing.assert_close(model(images), model.classifier(features))


def test_pooling_before_relu_changes_neither_value_nor_gradient():
    model = PaperCNN(SPEC)
    images = torch.randn(5, *SPEC.image_shape, requires_grad=True)
    x = torch.max_pool2d(torch.relu(model.conv1(images)), 2)
    x = torch.max_pool2d(torch.relu(model.conv2(x)), 2)
    as_printed = torch.relu(model.hidden(x.flatten(1)))
    ours = model.features(images)
    assert torch.equal(ours, as_printed)
    (expected,) = torch.autograd.grad(as_printed.square().sum(), images)
    (gradient,) = torch.autograd.grad(ours.square().sum(), images)
    torch.testing.assert_close(gradient, expected)


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


def test_unknown_architecture_names_the_known_ones():
    with pytest.raises(InvalidInput, match=r"'resnet-99' is not known; choose one of: paper-cnn"):
        build_model(ModelSpec(architecture="resnet-99"))


@pytest.mark.parametrize(("height", "width"), [(15, 32), (32, 15), (8, 8)])
def test_too_small_images_are_refused_with_the_remedy(height: int, width: int):
    with pytest.raises(InvalidInput, match=rf"at least 16x16, not {height}x{width}; scale"):
        build_model(ModelSpec(height=height, width=width))


def test_weights_of_another_model_are_refused():
    model = build_model(SPEC)
    other = dict(weights())
    other["extra"] = other.pop("conv1.bias")
    with pytest.raises(InvalidInput, match=r"missing \['conv1.bias'\], unexpected \['extra'\]"):
        load_weights(model, other)
    wrong_shape = dict(weights()) | {"classifier.bias": np.zeros(10, np.float32)}
    with pytest.raises(InvalidInput, match=r"'classifier.bias' has shape \[10\], the model \[3\]"):
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
