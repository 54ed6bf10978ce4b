from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from onnx import TensorProto, helper
from torch import Tensor, nn

from hfmds.algorithm.models import architectures
from hfmds.algorithm.torch_steps import optimisers
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec
from hfmds.errors import CorruptData
from hfmds.plans import steps
from hfmds.plans.check import check
from hfmds.plans.format import BATCH, OPSET, Graph, PlanSpec, TensorSpec
from hfmds.plans.making import make_plan
from hfmds.plans.onnx_export import export
from hfmds.plans.plan_library import PlanLibrary
from hfmds.plans.steps import Step, Steps, Tensors
from tests.plans.examples import SPEC

STATE = tuple(TensorSpec(name, "float32", (BATCH, 2)) for name in ("mean", "square"))
EPSILON = 1e-8


def direction(given: Tensors) -> dict[str, torch.Tensor]:
    """Adam's, as far as it can go wrong."""
    return {"direction": given["mean"] / (given["square"].sqrt() + EPSILON)}


STEP = Step(STATE, direction)


def graph(epsilon: float, factor: float = 1.0, batch: str | int = BATCH) -> Graph:
    """The same in ONNX, with another epsilon and another factor."""
    nodes = [
        helper.make_node("Sqrt", ["square"], ["root"]),
        helper.make_node("Add", ["root", "epsilon"], ["divisor"]),
        helper.make_node("Div", ["mean", "divisor"], ["quotient"]),
        helper.make_node("Mul", ["quotient", "factor"], ["product"]),
        helper.make_node("Reshape", ["product", "shape"], ["direction"]),
    ]
    rows = -1 if isinstance(batch, str) else batch
    constants = [
        helper.make_tensor("epsilon", TensorProto.FLOAT, [], [epsilon]),
        helper.make_tensor("factor", TensorProto.FLOAT, [], [factor]),
        helper.make_tensor("shape", TensorProto.INT64, [2], [rows, 2]),
    ]
    values = [helper.make_tensor_value_info(s.name, TensorProto.FLOAT, s.shape) for s in STATE]
    output = helper.make_tensor_value_info("direction", TensorProto.FLOAT, [BATCH, 2])
    made = helper.make_graph(nodes, "g", values, [output], constants)
    opset = helper.make_opsetid("", OPSET)
    model: onnx.ModelProto = helper.make_model(made, opset_imports=[opset], ir_version=8)
    outputs = (TensorSpec("direction", "float32", (BATCH, 2)),)
    return Graph(model.SerializeToString(), STATE, outputs, 0, 0)


def test_a_graph_that_computes_the_same_passes() -> None:
    check(graph(EPSILON), STEP, STEP, SPEC, "the graph")


def test_an_epsilon_that_was_taken_for_zero_is_noticed() -> None:
    with pytest.raises(CorruptData, match="with 5 images: direction"):
        check(graph(0.0), STEP, STEP, SPEC, "the graph")


def test_a_small_error_is_noticed() -> None:
    with pytest.raises(CorruptData, match="direction"):
        check(graph(EPSILON, factor=1.0001), STEP, STEP, SPEC, "the graph")


def test_a_result_that_is_not_a_number_is_noticed() -> None:
    with pytest.raises(CorruptData, match="direction is inf"):
        check(graph(EPSILON, factor=float("nan")), STEP, STEP, SPEC, "the graph")


def test_a_batch_that_became_a_constant_is_noticed() -> None:
    with pytest.raises(CorruptData, match="with 1 images: onnxruntime fails"):
        check(graph(EPSILON, batch=5), STEP, STEP, SPEC, "the graph")


# --- the three errors of torch's exporter that are silent ---------------------------------------


class Normed(nn.Module):
    """A small network with batch normalisation."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.first = nn.Conv2d(spec.channels, 4, 3, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.classifier = nn.Linear(4, spec.classes)

    def features(self, images: Tensor) -> Tensor:
        return F.relu(self.norm(self.first(images))).mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits


@pytest.fixture
def normed(monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    monkeypatch.setattr(architectures, "_registered", {"normed": Normed})
    return ModelSpec("normed", channels=1, height=8, width=8, classes=3)


def require_same(model: ModelSpec, name: str, exported: Graph) -> None:
    right, reference = Steps(model, Hfmds), Steps(model, Hfmds, torch.float64)
    check(exported, right.by_name[name], reference.by_name[name], model, name)


@pytest.mark.integration
def test_adam_without_its_epsilon_is_noticed(
    normed: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(optimisers, "_EPSILON", 0.0)
        exported = export(Steps(normed, Hfmds).by_name["synthesise"])
    with pytest.raises(CorruptData, match="next:images"):
        require_same(normed, "synthesise", exported)


@pytest.mark.integration
def test_a_beta_that_was_stored_as_float32_is_noticed(
    normed: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(steps, "BETAS", tuple(float(np.float32(beta)) for beta in steps.BETAS))
        exported = export(Steps(normed, Hfmds).by_name["synthesise"])
    with pytest.raises(CorruptData, match="next:images"):
        require_same(normed, "synthesise", exported)


@pytest.mark.integration
def test_batch_normalisation_of_evaluation_in_training_is_noticed(
    normed: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stay_in_evaluation(module: nn.Module, mode: bool = True) -> nn.Module:
        module.training = False
        return module

    with monkeypatch.context() as patch:
        patch.setattr(nn.BatchNorm2d, "train", stay_in_evaluation)
        exported = export(Steps(normed, Hfmds).by_name["train"])
    with pytest.raises(CorruptData, match="train differs"):
        require_same(normed, "train", exported)


# --- correct plans pass, whatever the network, the image and the classes -------------------------

NETWORKS = ("paper-cnn", "resnet-gn")
WITH_GRADIENTS = {"hfmds": ("train", "synthesise", "assess"), "fedprox": ("train",)}


def require_plan(architecture: str, size: int, classes: int, *methods: str) -> None:
    model = ModelSpec(architecture, channels=3, height=size, width=size, classes=classes)
    for method in methods or WITH_GRADIENTS:
        assert make_plan(PlanSpec(model, method, WITH_GRADIENTS[method])).model == model


@pytest.mark.integration
def test_a_distance_of_a_million_weights_is_exact_enough() -> None:
    require_plan("paper-cnn", 40, 10, "fedprox")


@pytest.mark.integration
@pytest.mark.timeout(1800)
@pytest.mark.matrix(one_in=20)
@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("size", [20, 33, 48, 64, 96])
@pytest.mark.parametrize("architecture", NETWORKS)
def test_correct_plans_pass(architecture: str, size: int, classes: int) -> None:
    require_plan(architecture, size, classes)


@pytest.mark.integration
@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("architecture", "size", "classes"),
    [
        ("resnet-gn", 128, 10),
        ("resnet-gn", 224, 2),
        ("resnet-gn", 224, 10),
        ("resnet-gn", 256, 2),
        ("paper-cnn", 128, 10),
        ("paper-cnn", 224, 2),
        ("paper-cnn", 256, 10),  # 122 million weights
    ],
)
def test_correct_plans_of_large_images_pass(architecture: str, size: int, classes: int) -> None:
    """A child process makes each plan, and frees its gigabytes when it ends."""
    model = ModelSpec(architecture, channels=3, height=size, width=size, classes=classes)
    for method, graphs in WITH_GRADIENTS.items():
        assert PlanLibrary().plan(PlanSpec(model, method, graphs))
