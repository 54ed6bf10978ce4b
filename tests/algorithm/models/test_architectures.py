from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hfmds.algorithm.models.architectures import known_architectures, register_architecture
from hfmds.algorithm.models.building import build_model, initial_weights, model_bytes, weights_of
from hfmds.algorithm.models.networks import PaperCNN
from hfmds.domain.recipe import OUR_ARCHITECTURES, ModelSpec
from hfmds.errors import ConfigurationError, Conflict, InvalidInput
from tests.algorithm.examples import assert_same

Install = Callable[..., None]

NETWORK = """
import torch
from torch import nn

torch.rand(1)  # a package that draws numbers when it is imported

class Net(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(spec.channels, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.classifier = nn.Linear(4, spec.classes)

    def forward(self, images):
        return self.classifier(self.features(images))
"""


class Net(nn.Module):
    """A network of a researcher's own; not ours in any way."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.hidden = nn.Linear(spec.channels * spec.height * spec.width, 6)
        self.drop = nn.Dropout()
        self.drop.eval()
        self.classifier = nn.Linear(6, spec.classes)

    def features(self, images: Tensor) -> Tensor:
        return torch.relu(self.drop(self.hidden(images.flatten(1))))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package with an entry point where Python finds it, as pip would."""
    monkeypatch.syspath_prepend(tmp_path)

    def installed(package: str, name: str, code: str = NETWORK, value: str = "Net") -> None:
        (tmp_path / f"{package}.py").write_text(code)
        metadata = tmp_path / f"{package}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n"
        )
        (metadata / "entry_points.txt").write_text(f"[hfmds.models]\n{name} = {package}:{value}\n")

    return installed


def test_our_own_networks_are_known():
    assert {"paper-cnn", "resnet-gn"} == set(OUR_ARCHITECTURES) <= set(known_architectures())
    assert all(build_model(ModelSpec(name)).features for name in OUR_ARCHITECTURES)
    assert isinstance(build_model(ModelSpec()), PaperCNN)


def test_an_unknown_architecture_is_refused_with_the_known_ones_and_the_nearest(install: Install):
    install("nets_of_others", "vision-net")
    with pytest.raises(InvalidInput) as refused:
        build_model(ModelSpec("resnet-ng"))
    assert "'resnet-ng' is not known here (did you mean 'resnet-gn'?); choose" in str(refused.value)
    for name in ("paper-cnn", "resnet-gn", "vision-net"):
        assert name in str(refused.value).partition("choose one of: ")[2]
    with pytest.raises(InvalidInput, match=r"'xyz' is not known here; choose one of: .*; or inst"):
        build_model(ModelSpec("xyz"))


def test_a_registered_network_is_built_for_the_specs_images_and_classes():
    register_architecture("registered-net", Net)
    model = build_model(ModelSpec("registered-net", channels=1, height=3, width=5, classes=4))
    assert isinstance(model, Net)
    assert model.hidden.weight.shape == (6, 15)
    assert model.classifier.weight.shape == (4, 6)
    assert "registered-net" in known_architectures()


def test_a_name_means_one_network():
    register_architecture("one-net", Net)
    register_architecture("one-net", Net)  # a module that is imported anew says the same again
    with pytest.raises(Conflict, match=r"registered as 'one-net'; .* replace=True"):
        register_architecture("one-net", lambda spec: Net(spec))
    with pytest.raises(Conflict, match="'paper-cnn'"):
        register_architecture("paper-cnn", Net, replace=True)


def test_a_replaced_network_is_looked_at_again():
    spec = ModelSpec("replaced-net", height=4, width=4)
    register_architecture("replaced-net", Net)
    build_model(spec)
    register_architecture("replaced-net", lambda _: nn.Linear(1, 1), replace=True)
    with pytest.raises(InvalidInput, match=r"'replaced-net' .* Linear lacks"):
        build_model(spec)


def test_a_network_comes_with_an_installed_package(install: Install):
    install("my_nets", "installed-net")
    spec = ModelSpec("installed-net", channels=2, height=9, width=7, classes=5)
    expected = initial_weights(spec, 1)  # imports it: what that draws is not taken from the seed's
    assert {name: array.shape for name, array in expected.items()} == {
        "features.0.weight": (4, 2, 3, 3),
        "features.0.bias": (4,),
        "classifier.weight": (5, 4),
        "classifier.bias": (5,),
    }
    assert_same(initial_weights(spec, 1), expected)


def test_a_recipe_cannot_name_code_that_is_not_declared(install: Install):
    install("declared_nets", "declared-net")
    for name in (
        "declared_nets:Net",
        "declared_nets",
        "hfmds.algorithm.models.networks:PaperCNN",
        "",
    ):
        with pytest.raises(InvalidInput, match="is not known here"):
            build_model(ModelSpec(name))


def test_two_packages_with_the_same_name_are_refused(install: Install):
    install("nets_a", "twice-net")
    install("nets_b", "twice-net")
    with pytest.raises(ConfigurationError, match=r"nets_a 1.2 and nets_b 1.2"):
        build_model(ModelSpec("twice-net"))


@pytest.mark.parametrize(
    ("package", "code", "reason"),
    [
        ("nets_x", "import no_such_module", r"cannot be imported: ModuleNotFoundError: .*; repair"),
        ("nets_y", "Other = 1", r"cannot be imported: AttributeError: .*; repair"),
        ("nets_z", "Net = 1", r"cannot be called; its entry point must name a function or class"),
    ],
)
def test_a_broken_package_is_named(install: Install, package: str, code: str, reason: str):
    install(package, "broken-net", code)
    with pytest.raises(
        ConfigurationError, match=rf"'{package}:Net' of package {package} 1.2 {reason}"
    ):
        build_model(ModelSpec("broken-net"))


def test_a_factory_that_fails_is_told_with_the_spec():
    def factory(spec: ModelSpec) -> nn.Module:
        raise ValueError(f"{spec.channels} channels are too few")

    register_architecture("failing-net", factory)
    message = (
        r"'failing-net' cannot be built for images of \[1, 32, 32\] .* 10 classes: ValueError: 1"
    )
    with pytest.raises(InvalidInput, match=message):
        build_model(ModelSpec("failing-net", channels=1))


def test_a_network_that_cannot_be_used_is_refused_before_anything_is_trained():
    class WithoutRelu(Net):
        def features(self, images: Tensor) -> Tensor:
            return self.hidden(images.flatten(1)) - 1

    register_architecture("signed-net", WithoutRelu)
    spec = ModelSpec("signed-net", height=4, width=4)
    for _ in range(2):  # not only the first time
        with pytest.raises(InvalidInput, match=r"'signed-net' has features down to -"):
            initial_weights(spec, 0)


def test_a_network_is_handed_out_as_its_factory_made_it():
    built: list[Net] = []

    def factory(spec: ModelSpec) -> nn.Module:
        built.append(Net(spec))
        return built[-1]

    register_architecture("kept-net", factory)
    spec = ModelSpec("kept-net", height=4, width=4)
    first = build_model(spec)
    assert first.training
    assert not first.drop.training
    assert len(built) == 2  # one was tried out
    build_model(spec)
    assert len(built) == 3  # the second time nothing is


def test_trying_a_network_out_takes_no_numbers_from_the_seeds():
    register_architecture("drawn-net", Net)
    spec = ModelSpec("drawn-net", height=4, width=4)
    torch.manual_seed(3)
    expected = weights_of(Net(spec))
    assert_same(initial_weights(spec, 3), expected)  # tried out
    assert_same(initial_weights(spec, 3), expected)  # known to be sound


def test_a_networks_size_is_known_without_making_it(install: Install):
    install("sized_nets", "sized-net")
    spec = ModelSpec("sized-net", channels=2, classes=5)
    assert model_bytes(spec) == 4 * ((2 * 9 + 1) * 4 + (4 + 1) * 5)
    register_architecture("unsplit-net", lambda _: nn.Linear(1, 1))
    with pytest.raises(InvalidInput, match=r"'unsplit-net' .* Linear lacks"):
        model_bytes(ModelSpec("unsplit-net"))
    assert model_bytes(ModelSpec(height=4000, width=4000)) > 10**10
