from __future__ import annotations

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from hfmds.errors import CorruptData
from hfmds.plans.check import check
from hfmds.plans.format import BATCH, OPSET, Graph, TensorSpec
from hfmds.plans.steps import Step, Tensors
from tests.plans.examples import SPEC

STATE = tuple(TensorSpec(name, "float32", (BATCH, 2)) for name in ("mean", "square"))
EPSILON = 1e-8


def direction(given: Tensors) -> dict[str, torch.Tensor]:
    """Adam's, as far as it can go wrong."""
    return {"direction": given["mean"] / (given["square"].sqrt() + EPSILON)}


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
    check(graph(EPSILON), Step(STATE, direction), SPEC, "the graph")


def test_an_epsilon_that_was_taken_for_zero_is_noticed() -> None:
    with pytest.raises(CorruptData, match="the graph differs from torch with 5 images: direction"):
        check(graph(0.0), Step(STATE, direction), SPEC, "the graph")


def test_a_small_error_is_noticed() -> None:
    with pytest.raises(CorruptData, match="more than"):
        check(graph(EPSILON, factor=1.0001), Step(STATE, direction), SPEC, "the graph")


def test_a_result_that_is_not_a_number_is_noticed() -> None:
    with pytest.raises(CorruptData, match="nan apart"):
        check(graph(EPSILON, factor=float("nan")), Step(STATE, direction), SPEC, "the graph")


def test_a_batch_that_became_a_constant_is_noticed() -> None:
    with pytest.raises(CorruptData, match="with 1 images: onnxruntime fails"):
        check(graph(EPSILON, batch=5), Step(STATE, direction), SPEC, "the graph")
