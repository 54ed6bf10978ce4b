"""Whole exports: what comes out has been compared with torch, or making it has failed.

What devices learn by plans of these and other networks is in tests/integration/test_engines.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from hfmds.algorithm.methods.hfmds import HfmdsMethod
from hfmds.algorithm.methods.method_registry import METHOD_CLASSES
from hfmds.algorithm.models import architectures
from hfmds.algorithm.models.architectures import register_architecture
from hfmds.algorithm.torch_steps.torch_training import Batch, BatchLoss, LocalModel
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec
from hfmds.errors import InvalidInput
from hfmds.plans.format import GRAPHS, Plan, PlanSpec, encode_plan, read_plan
from hfmds.plans.making import make_plan

pytestmark = pytest.mark.integration

OF_EACH_KIND = ("train", "targets", "synthesise", "evaluate")


class Motley(nn.Module):
    """Of everything a little: what other networks may be made of."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.first = nn.Conv2d(spec.channels, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8, bias=False)
        self.grouped = nn.Conv2d(8, 12, 1, groups=2)
        self.pointwise = nn.Conv2d(12, 16, 1)
        self.classifier = nn.Sequential(nn.Linear(16, 10), nn.Tanh(), nn.Linear(10, spec.classes))

    def features(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(images)))
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)  # windows overlap
        x = F.max_pool2d(F.silu(self.depthwise(x)), 2)  # with a row and a column left over
        x = F.avg_pool2d(F.gelu(self.grouped(x)), 2, stride=1, padding=1)  # of 3x4
        return F.relu(self.pointwise(F.adaptive_avg_pool2d(x, (3, 2)))).mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits


class Forgetful(Motley):
    """Draws random numbers as it trains."""

    def features(self, images: Tensor) -> Tensor:
        return F.dropout(super().features(images), training=self.training)


class Regularised(Motley):
    """Has a layer for that."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.classifier = nn.Sequential(nn.Dropout(0.3), nn.Linear(16, spec.classes))


class Uneven(Motley):
    """Pools by windows of several sizes."""

    def features(self, images: Tensor) -> Tensor:
        return super().features(F.adaptive_avg_pool2d(images, (9, 11)))


class Rounded(Motley):
    """Pools by windows that reach over the edge."""

    def features(self, images: Tensor) -> Tensor:
        x = F.avg_pool2d(self.norm(self.first(images)), 2, ceil_mode=True)
        return F.relu(self.pointwise(self.grouped(self.depthwise(x)))).mean((2, 3))


REFUSED = {
    "forgetful": Forgetful,
    "regularised": Regularised,
    "uneven": Uneven,
    "rounded": Rounded,
}


@pytest.fixture(autouse=True)
def own_networks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(architectures, "_registered", {})
    register_architecture("motley", Motley)
    for name, network in REFUSED.items():
        register_architecture(name, network)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def papers() -> Plan:
    """The plan of the paper's network, all graphs of it, made once: it takes a while."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(torch.export, "export")  # traced once: twice more is what takes long
        return make_plan(
            PlanSpec(ModelSpec("paper-cnn", channels=3, height=28, width=28, classes=3))
        )


def test_the_plan_of_the_papers_network_has_every_graph(papers: Plan, tmp_path: Path) -> None:
    assert tuple(papers.graphs) == GRAPHS
    assert papers.features == 512
    path = tmp_path / "plan"
    path.write_bytes(encode_plan(papers))
    assert read_plan(path, "the plan") == papers
    train = papers.graph("train")
    # Weights and momentum, and both anew, are the least that it needs.
    weights = sum(s.numpy_dtype.itemsize * torch.Size(s.shape).numel() for s in train.inputs[:8])
    assert train.fixed_bytes > 3 * weights
    assert train.bytes_per_image > 1000


def test_a_network_of_many_layers_has_a_plan() -> None:
    model = ModelSpec("motley", channels=2, height=18, width=21, classes=5)
    plan = make_plan(PlanSpec(model, graphs=OF_EACH_KIND))
    buffers = {s.name for s in plan.graph("train").outputs if s.name.startswith("next:buffer:")}
    assert buffers == {
        "next:buffer:norm.running_mean",
        "next:buffer:norm.running_var",
        "next:buffer:norm.num_batches_tracked",
    }


def test_an_export_repeats_to_the_byte() -> None:
    model = ModelSpec("motley", channels=1, height=12, width=12, classes=2)
    one, other = (make_plan(PlanSpec(model, graphs=("targets",))) for _ in range(2))
    assert encode_plan(one) == encode_plan(other)


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("forgetful", r"draws random numbers.*bernoulli.*torch engine"),
        ("regularised", r"layer 'classifier\.0' of 'regularised' is Dropout\(p=0\.3.*torch engine"),
        ("uneven", r"pools 18x21 to 9x11 by means \(AdaptiveAvgPool2d\).*torch engine"),
        ("rounded", r"\(AvgPool2d\) with ceil_mode.*torch engine"),
    ],
)
def test_what_a_plan_cannot_is_refused_by_name(architecture: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_plan(
            PlanSpec(ModelSpec(architecture, channels=1, height=18, width=21), graphs=("train",))
        )


class SmoothingMethod(HfmdsMethod):
    """Has a loss that passes a setting where torch wants a Python number."""

    @classmethod
    def loss(cls, local: LocalModel, batch: Batch, settings: Hfmds) -> BatchLoss:
        z = local.features(batch.images)
        smoothed = F.cross_entropy(
            local.classifier(z), batch.labels, label_smoothing=settings.matching_weight
        )
        return BatchLoss(smoothed, z)


class BranchingMethod(HfmdsMethod):
    """Has a loss that tests a setting."""

    @classmethod
    def loss(cls, local: LocalModel, batch: Batch, settings: Hfmds) -> BatchLoss:
        loss, z = super().loss(local, batch, settings)
        return BatchLoss(2 * loss if settings.mu > 0 else loss, z)


@pytest.mark.parametrize("method", [SmoothingMethod, BranchingMethod])
def test_a_loss_that_reads_the_value_of_a_setting_is_refused(
    method: type[HfmdsMethod], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHOD_CLASSES, Hfmds, method)
    with pytest.raises(InvalidInput, match=r"method hfmds.*needs_torch"):
        make_plan(PlanSpec(ModelSpec(channels=1, height=20, width=20), "hfmds", ("train",)))


class ChoosyMethod(HfmdsMethod):
    """Has a loss that a setting switches."""

    @classmethod
    def loss(cls, local: LocalModel, batch: Batch, settings: Hfmds) -> BatchLoss:
        assert not settings.local_prototypes
        return super().loss(local, batch, settings)


def test_a_loss_that_reads_a_setting_other_than_a_number_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(METHOD_CLASSES, Hfmds, ChoosyMethod)
    with pytest.raises(InvalidInput, match=r"hfmds.*'local_prototypes'.*needs_torch"):
        make_plan(
            PlanSpec(ModelSpec("motley", channels=1, height=12, width=12), "hfmds", ("train",))
        )
