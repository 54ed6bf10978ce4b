"""Exports a step in torch to an ONNX graph.

Torch traces the step while autograd runs, so that the trace contains the gradients' operators.
`lowerings` replaces them by operators that ONNX has. Then torch's exporter translates the trace.
Three of its errors are silent, so `check` compares every graph with torch.
"""

from __future__ import annotations

import logging
import math
import operator
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import onnx
import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._export.verifier import SpecViolationError
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.passes.dialect.common.cse_pass import CSEPass
from torch.onnx.errors import OnnxExporterError
from torch.utils._pytree import tree_structure

from hfmds.errors import InvalidInput
from hfmds.plans.format import BATCH, OPSET, Graph, TensorSpec
from hfmds.plans.graph_memory import memory_of
from hfmds.plans.lowerings import lowerings
from hfmds.plans.steps import Step

_IR_VERSION = 8  # of ONNX's files; as old as our operators, for old runtimes
_TYPES = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64}
_EXAMPLE_BATCH = 6  # torch takes 0 and 1 for constants


def export(step: Step) -> Graph:
    """Export a step as a graph."""
    with _quiet():
        traced, inputs, outputs = _traced(step)
        try:
            program = _program(deepcopy(traced))
            translated = _translated(program)
        except (OnnxExporterError, SpecViolationError):
            program = _traced_again(traced, inputs)
            translated = _translated(program)
    data = _encoded(translated, inputs, outputs)
    fixed_bytes, bytes_per_image = memory_of(program)
    return Graph(data, inputs, outputs, fixed_bytes, bytes_per_image)


def _program(traced: GraphModule) -> ExportedProgram:
    """Wrap a trace as the exporter's input: constants become inputs, and it gets a signature.

    Torch itself would trace twice more (`_traced_again`), which takes most of an export's time. Our
    networks do not need that. Networks of users may.
    """
    graph = traced.graph
    inputs = [
        _input_spec(InputKind.USER_INPUT, node) for node in graph.find_nodes(op="placeholder")
    ]
    fixed: list[InputSpec] = []
    constants: dict[str, Any] = {}
    first = next(iter(graph.nodes))
    for node in graph.find_nodes(op="get_attr"):
        constants[node.target] = getattr(traced, node.target)
        with graph.inserting_before(first):
            constant = graph.placeholder(node.target)
        constant.meta = node.meta
        node.replace_all_uses_with(constant)
        graph.erase_node(node)
        fixed.append(_input_spec(InputKind.CONSTANT_TENSOR, constant, node.target))
    outputs: Any = graph.output_node().args[0]
    output_specs = [
        OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in outputs
    ]
    call = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=tree_structure((tuple(inputs), {})),
        out_spec=tree_structure(tuple(output_specs)),
    )
    program = ExportedProgram(
        root=traced,
        graph=graph,
        graph_signature=ExportGraphSignature([*fixed, *inputs], output_specs),
        state_dict={},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", call)],
        constants=constants,
    )
    program.run_decompositions = lambda *_: program
    return program


def _input_spec(kind: InputKind, node: Node, target: str | None = None) -> InputSpec:
    return InputSpec(kind, TensorArgument(node.name), target)


def _traced_again(traced: GraphModule, inputs: Sequence[TensorSpec]) -> ExportedProgram:
    """Trace again, and decompose in-place operators and operators that ONNX lacks."""
    batch = torch.export.Dim(BATCH, min=1)
    examples = tuple(_example(spec) for spec in inputs)
    shapes = tuple({0: batch} if BATCH in spec.shape else None for spec in inputs)
    return torch.export.export(traced, examples, dynamic_shapes=shapes, strict=False)


def _translated(program: ExportedProgram) -> onnx.ModelProto:
    """Translate a program to ONNX's operators."""
    # No optimisation: torch's optimiser replaces small constants, such as Adam's epsilon, by zero.
    exported = torch.onnx.export(
        program, dynamo=True, optimize=False, verbose=False, opset_version=OPSET
    )
    assert exported is not None
    return exported.model_proto


def _traced(step: Step) -> tuple[GraphModule, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Trace a step with its gradients; return the trace, the inputs it uses, and the outputs."""
    outputs: list[TensorSpec] = []

    def compute(*tensors: Tensor) -> tuple[Tensor, ...]:
        names = [spec.name for spec in step.inputs]
        results = step.compute(dict(zip(names, tensors, strict=True)))
        outputs[:] = [_spec(name, tensor) for name, tensor in results.items()]
        return tuple(results.values())

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    inputs = _inputs(step, mode)
    with mode:
        table = lowerings(weights_learn=step.weights_learn)
        traced = make_fx(compute, table, _allow_non_fake_inputs=True)(*inputs)
    _remove_detach(traced.graph)
    _infer_batch_of_views(traced)
    _merge_constants(traced)
    _remove_double_transpositions(traced)
    _count_elements_by_sizes(traced)
    _read_batch_once(traced)
    traced.graph.eliminate_dead_code()
    used = _remove_unused_inputs(traced.graph, step.inputs)
    _merge_products_and_sums(traced)
    _require_repeatable(traced)
    once = CSEPass()(traced)  # merges what a step and its gradient both compute
    return once.graph_module if once else traced, used, tuple(outputs)


def _remove_unused_inputs(graph: FxGraph, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Remove the inputs that no operator uses, and return the others."""
    used: list[TensorSpec] = []
    for node, spec in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
        if node.users:
            used.append(spec)
        else:
            graph.erase_node(node)
    return tuple(used)


def _infer_batch_of_views(traced: GraphModule) -> None:
    """Let ONNX infer the batch of each view; otherwise every view has operators to compute it."""
    for node in traced.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        x, shape = node.args
        if sum(isinstance(size, Node) for size in shape) == 1 and -1 not in shape:
            node.args = (x, [-1 if isinstance(size, Node) else size for size in shape])


def _read_batch_once(traced: GraphModule) -> None:
    """Read the batch size from one input only; all inputs have the same."""
    graph, ask = traced.graph, torch.ops.aten.sym_size.int
    inputs = graph.find_nodes(op="placeholder")
    asked = next(node for node in inputs if _batch_of(node) is not None)
    with graph.inserting_after(inputs[-1]):
        batch = graph.call_function(ask, (asked, 0))
    batch.meta["val"] = _batch_of(asked)
    for node in graph.find_nodes(op="call_function", target=ask):
        if node.meta["val"].node.expr == batch.meta["val"].node.expr:
            node.replace_all_uses_with(batch)


def _batch_of(node: Node) -> torch.SymInt | None:
    return next((d for d in node.meta["val"].shape if isinstance(d, torch.SymInt)), None)


def _merge_constants(traced: GraphModule) -> None:
    """Merge equal constants, so that equal operators on them are merged, too."""
    first: dict[str, Node] = {}
    for node in traced.graph.find_nodes(op="get_attr"):
        constant = getattr(traced, node.target)
        if isinstance(constant, Tensor):
            value = f"{constant.dtype} {constant.tolist()}"
            node.replace_all_uses_with(first.setdefault(value, node))


def _remove_double_transpositions(traced: GraphModule) -> None:
    """Remove pairs of transpositions, which autograd makes for gradients."""
    turn = torch.ops.aten.t.default
    for node in traced.graph.find_nodes(op="call_function", target=turn):
        if node.args[0].target is turn:
            node.replace_all_uses_with(node.args[0].args[0])


def _remove_detach(graph: FxGraph) -> None:
    """Remove the detach of every constant: a trace needs no gradients of its own."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.detach_.default):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def _count_elements_by_sizes(traced: GraphModule) -> None:
    """Compute the number of a tensor's elements from its sizes, because ONNX has only these."""
    aten = torch.ops.aten
    for node in traced.graph.find_nodes(op="call_function", target=aten.sym_numel.default):
        (x,) = node.args
        sizes = x.meta["val"].shape
        count: Any = math.prod(size for size in sizes if isinstance(size, int))
        with traced.graph.inserting_before(node):
            for dimension, size in enumerate(sizes):
                if not isinstance(size, int):
                    factor = traced.graph.call_function(aten.sym_size.int, (x, dimension))
                    factor.meta["val"] = size
                    if count != 1:
                        factor = traced.graph.call_function(operator.mul, (factor, count))
                        factor.meta["val"] = size * count
                    count = factor
        node.replace_all_uses_with(count)


def _merge_products_and_sums(traced: GraphModule) -> None:
    """Merge a product and a sum, as of weight decay, into one operator: one pass less."""
    aten = torch.ops.aten
    for node in traced.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        product, other = node.args
        if (
            getattr(product, "target", None) is aten.mm.default
            and list(product.users) == [node]
            and other.meta["val"].shape == product.meta["val"].shape
        ):
            with traced.graph.inserting_before(node):
                merged = traced.graph.call_function(aten.addmm.default, (other, *product.args))
            merged.meta = node.meta
            node.replace_all_uses_with(merged)
    traced.graph.eliminate_dead_code()


def _require_repeatable(traced: GraphModule) -> None:
    for node in traced.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise InvalidInput(
                f"the network draws random numbers as it trains ({node.target}), which a plan "
                "cannot; let its devices use the torch engine, or leave out dropout"
            )


def _inputs(step: Step, mode: FakeTensorMode) -> list[Tensor]:
    """Make tensors without values; their batch is one common symbol."""
    batch: Any = None
    inputs: list[Tensor] = []
    for spec in step.inputs:
        example = _example(spec)
        if BATCH not in spec.shape:
            inputs.append(mode.from_tensor(example, static_shapes=True))
        elif batch is None:
            sizes = [DimDynamic.DYNAMIC] + [DimDynamic.STATIC] * (example.dim() - 1)
            first = mode.from_tensor(
                example,
                static_shapes=False,
                source=ConstantSource(spec.name),
                symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes),
            )
            batch = first.shape[0]
            inputs.append(first)
        else:
            with mode:
                inputs.append(torch.empty(batch, *spec.shape[1:], dtype=example.dtype))
    return inputs


def _example(spec: TensorSpec) -> Tensor:
    return torch.zeros(spec.shape_for(_EXAMPLE_BATCH), dtype=getattr(torch, spec.dtype))


def _spec(name: str, tensor: Tensor) -> TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = (BATCH if isinstance(d, torch.SymInt) else int(d) for d in tensor.shape)
    return TensorSpec(name, dtype, tuple(shape))


def _encoded(
    model: onnx.ModelProto, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> bytes:
    """Encode a graph with the plan's names, and without traces of the machine that made it.

    All other values are numbered, because the exporter's names may equal those of an input.
    """
    graph = model.graph
    plain = onnx.helper.make_graph([], "plan", [], [])
    names = {
        **{value.name: spec.name for value, spec in zip(graph.input, inputs, strict=True)},
        **{value.name: spec.name for value, spec in zip(graph.output, outputs, strict=True)},
        "": "",  # an omitted input
    }

    def name(value: str) -> str:
        return names.setdefault(value, f"_{len(names)}")

    for constant in graph.initializer:
        constant.name = name(constant.name)
        plain.initializer.append(constant)
    for node in graph.node:
        plain.node.append(
            onnx.NodeProto(
                input=map(name, node.input),
                output=map(name, node.output),
                op_type=node.op_type,
                domain=node.domain,
                attribute=node.attribute,
            )
        )
    for specs, values in ((inputs, plain.input), (outputs, plain.output)):
        values.extend(
            onnx.helper.make_tensor_value_info(s.name, _TYPES[s.dtype], s.shape) for s in specs
        )
    encoded = onnx.helper.make_model(plain, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    encoded.ir_version = _IR_VERSION
    onnx.checker.check_model(encoded, full_check=True)
    return encoded.SerializeToString(deterministic=True)


@contextmanager
def _quiet() -> Iterator[None]:
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
