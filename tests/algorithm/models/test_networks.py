from __future__ import annotations

import pytest
import torch

from hfmds.algorithm.models.building import build_model, initial_weights, model_bytes
from hfmds.algorithm.models.networks import PaperCNN, ResNetGN
from hfmds.algorithm.models.split_model import require_sound, require_split
from hfmds.domain.recipe import ModelSpec
from hfmds.errors import InvalidInput

NETWORKS = ["paper-cnn", "resnet-gn"]


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
    spec = ModelSpec(channels=1, height=16, width=16, classes=3)
    model = PaperCNN(spec)
    images = torch.randn(5, *spec.image_shape, requires_grad=True)
    x = torch.max_pool2d(torch.relu(model.conv1(images)), 2)
    x = torch.max_pool2d(torch.relu(model.conv2(x)), 2)
    as_printed = torch.relu(model.hidden(x.flatten(1)))
    ours = model.features(images)
    assert torch.equal(ours, as_printed)
    (expected,) = torch.autograd.grad(as_printed.square().sum(), images)
    (gradient,) = torch.autograd.grad(ours.square().sum(), images)
    torch.testing.assert_close(gradient, expected)


def test_paper_cnn_has_as_many_weights_on_cifar_as_counted_by_hand():
    by_hand = (3 * 25 + 1) * 32 + (32 * 25 + 1) * 64 + (1600 + 1) * 512 + (512 + 1) * 10
    assert by_hand == 878_538
    assert model_bytes(ModelSpec()) == 4 * by_hand


def test_resnet_has_as_many_weights_as_counted_by_hand():
    by_hand = 9 * 3 * 16 + 2 * 16  # stem: a convolution, and scale and shift of its channels
    for width in (16, 32, 64):
        twice = 2 * width
        by_hand += 9 * width * twice + 9 * twice * twice  # branch
        by_hand += width * twice  # shortcut
        by_hand += 3 * 2 * twice  # scale and shift after each of the three
    by_hand += (128 + 1) * 10
    assert by_hand == 304_154
    for side in (8, 32, 224):
        spec = ModelSpec("resnet-gn", height=side, width=side)
        assert model_bytes(spec) == 4 * by_hand


@pytest.mark.parametrize("classes", [2, 3, 100])
@pytest.mark.parametrize(
    ("channels", "height", "width"),
    [(1, 28, 28), (3, 32, 32), (4, 64, 64), (3, 17, 40), (1, 33, 16), (2, 16, 16)],
)
@pytest.mark.parametrize("architecture", NETWORKS)
def test_takes_any_channels_size_and_classes(
    architecture: str, channels: int, height: int, width: int, classes: int
):
    spec = ModelSpec(architecture, channels, height, width, classes)
    model = build_model(spec)
    require_split(model, architecture)
    require_sound(model, spec)
    images = torch.randn(2, channels, height, width)
    assert model(images).shape == (2, classes)


@pytest.mark.parametrize("architecture", NETWORKS)
def test_memory_layout_does_not_change_the_logits(architecture: str):
    model = build_model(ModelSpec(architecture)).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    model.to(memory_format=torch.channels_last)
    logits = model(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "height", "width", "least"),
    [
        ("paper-cnn", 15, 32, 16),
        ("paper-cnn", 32, 15, 16),
        ("paper-cnn", 8, 8, 16),
        ("resnet-gn", 7, 32, 8),
        ("resnet-gn", 32, 7, 8),
    ],
)
def test_too_small_images_are_refused_with_the_remedy(
    architecture: str, height: int, width: int, least: int
):
    message = rf"{architecture} needs .* at least {least}x{least}, not {height}x{width}; scale"
    with pytest.raises(InvalidInput, match=message):
        build_model(ModelSpec(architecture, height=height, width=width))
    build_model(ModelSpec(architecture, height=max(height, least), width=max(width, least)))


def test_an_image_does_not_change_the_features_of_another_in_the_resnets_batch():
    """Unlike with batch normalisation, in training too: a device's classes stay its own affair."""
    model = ResNetGN(ModelSpec(channels=1, height=8, width=8)).train()
    images = torch.randn(3, 1, 8, 8)
    together = model.features(images)
    alone = torch.cat([model.features(image[None]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_a_residual_block_adds_its_branch_to_its_shortcut():
    block = ResNetGN(ModelSpec("resnet-gn")).blocks[0]
    x = torch.randn(2, 16, 9, 7)
    torch.testing.assert_close(block(x), (block.branch(x) + block.shortcut(x)).clamp(min=0))
    assert block(x).shape == (2, 32, 5, 4)
