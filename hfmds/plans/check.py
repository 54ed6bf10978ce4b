"""Compares a graph with torch before a device gets it, because an export can fail silently.

The check runs the graph in onnxruntime (float32) and the same step in torch (float64), from the
same state. It compares every output: parameters, momentum, buffers, the synthetic images and both
of Adam's means.

Correct float32 graphs also differ from float64, by an amount that grows with the image: of millions
of ReLU inputs, rounding moves a few across zero. The yardstick is therefore torch itself: how far
torch's own float32 step is from float64 on the same state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from hfmds.domain.recipe import ModelSpec
from hfmds.errors import CorruptData
from hfmds.onnx_runtime import onnxruntime
from hfmds.plans.format import ANCHOR, BUFFER, MOMENTUM, PARAMETER, SETTING, Graph, TensorSpec
from hfmds.plans.steps import Step

TOLERANCE = 4e-6
"""Error that always passes, as a part of an output's largest value; typical is 1e-6.

A beta of Adam that the exporter stored as float32 moves the images by 6e-6.
"""

_TIMES_TORCH = 4.0  # how many times torch's own error passes, too
_BATCHES = (5, 1)  # two sizes: the batch must not have become a constant
_DRAWS = 3  # one must pass: rounding spoils single draws, an export error spoils all
_ROUNDINGS = 3  # runs of float32 torch for each draw, each with other last bits in its inputs
_ACTIVE_FEATURES = 8  # features that speak for a class
_SCALARS = {
    "learning_rate": 0.05,
    "momentum": 0.9,
    "weight_decay": 0.01,
    "matching_weight": 0.7,
    "step": 3,
}
_OTHER_SETTING = 0.5  # the value of each other setting of a method

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


def check(graph: Graph, step: Step, reference: Step, model: ModelSpec, what: str) -> None:
    """Refuse a graph that does not compute its step; `what` names the graph in errors.

    `step` computes in float32, `reference` the same in float64.

    Raises CorruptData: the graph is further from the reference than float32 explains.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # return memory between runs
    options.log_severity_level = 3  # errors only: it warns of constants that it does not fold
    session = onnxruntime.InferenceSession(graph.onnx, options, providers=["CPUExecutionProvider"])
    for batch in _BATCHES:
        if not _accepts(reference, _ordinary(graph, model, batch, 0), batch):
            continue
        for draw_state in (_ordinary, _still):
            draw = partial(draw_state, graph, model, batch)
            if difference := _difference(session, step, reference, draw):
                raise CorruptData(
                    f"{what} differs from torch with {batch} images: {difference}; it is not "
                    "used. Try other versions of torch and onnxruntime on the coordinator, or "
                    "let devices use the torch engine"
                )


def _accepts(reference: Step, state: Arrays, batch: int) -> bool:
    """Whether the network takes this batch: BatchNorm refuses one value per channel."""
    try:
        _computed(reference, state, torch.float64)
    except ValueError:
        if batch > 1:
            raise
        return False  # the engine on a device refuses such a batch, too
    return True


@dataclass(frozen=True, slots=True)
class _Comparison:
    """How far a graph and float32 torch are from the reference, in one state."""

    fault: str = ""  # why the graph has no error: it failed, or an output has a wrong shape
    error: float = 0.0
    output: str = ""  # the one with the largest error
    torch_error: float = 0.0


def _difference(
    session: onnxruntime.InferenceSession,
    step: Step,
    reference: Step,
    draw_state: Callable[[int], Arrays],
) -> str | None:
    """Describe how the graph differs from the reference in all drawn states; None: it does not."""
    comparisons: list[_Comparison] = []
    for seed in range(_DRAWS):
        comparison = _compare(session, step, reference, draw_state(seed))
        if comparison.fault:
            return comparison.fault
        if comparison.error <= TOLERANCE:
            return None
        comparisons.append(comparison)
    closest = min(comparisons, key=lambda comparison: comparison.error)
    torch_error = max(comparison.torch_error for comparison in comparisons)
    allowed = max(TOLERANCE, _TIMES_TORCH * torch_error)
    if closest.error <= allowed:
        return None
    return (
        f"{closest.output} is {closest.error:.2g} of its largest value apart, "
        f"more than {allowed:.2g}"
    )


def _compare(
    session: onnxruntime.InferenceSession, step: Step, reference: Step, state: Arrays
) -> _Comparison:
    """Compare in one state. The arrays of large networks take gigabytes, and end with the call."""
    expected = _computed(reference, state, torch.float64)
    try:
        outputs = dict(zip(expected, session.run(list(expected), dict(state)), strict=True))
    except Exception as failure:  # noqa: BLE001  # the caller reports every failure alike
        return _Comparison(fault=f"onnxruntime fails: {failure}")
    for name, values in expected.items():
        if outputs[name].shape != values.shape:
            shapes = list(outputs[name].shape), list(values.shape)
            return _Comparison(fault=f"{name} is {shapes[0]}, in torch {shapes[1]}")
    error, output = _largest_error(outputs, expected)
    if error <= TOLERANCE:
        return _Comparison("", error, output)
    del outputs
    torch_error = max(
        _largest_error(_computed(step, rounded, torch.float32), expected)[0]
        for rounded in _rounded(state)
    )
    return _Comparison("", error, output, torch_error)


def _computed(step: Step, state: Arrays, dtype: torch.dtype) -> dict[str, NDArray[Any]]:
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in state.items()}
    outputs = step.compute(
        {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}
    )
    return {name: t.detach().numpy() for name, t in outputs.items()}


def _largest_error(outputs: Arrays, expected: Arrays) -> tuple[float, str]:
    """The largest error, as a part of its output's largest value, and that output's name."""
    errors = [(0.0, "nothing")]
    for name, values in expected.items():
        if values.size:
            apart = float(np.abs(outputs[name] - values).max())
            scale = max(float(np.abs(values).max()), 1e-12)
            errors.append((apart / scale if math.isfinite(apart) else math.inf, name))
    return max(errors)


def _rounded(state: Arrays) -> Iterator[Arrays]:
    """The state, and the state with the last bits of its numbers changed at random."""
    yield state
    for seed in range(_ROUNDINGS - 1):
        random = np.random.default_rng(seed)
        yield {
            name: np.nextafter(array, _infinities(array.shape, random))
            if array.dtype == np.float32 and array.ndim
            else array
            for name, array in state.items()
        }


def _infinities(shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.float32]:
    """Draw a direction for each number, up or down."""
    return np.where(random.random(shape, np.float32) < 0.5, np.float32(-np.inf), np.float32(np.inf))


def _ordinary(graph: Graph, model: ModelSpec, batch: int, seed: int) -> dict[str, NDArray[Any]]:
    """Draw numbers of the size that training has."""
    random = np.random.default_rng(seed)
    state = {spec.name: _drawn(spec, model, batch, random) for spec in graph.inputs}
    for name, anchor in state.items():
        if name.startswith(ANCHOR):
            anchor += state[PARAMETER + name.removeprefix(ANCHOR)]
    if "target" in state:
        state["target"] /= state["target"].sum(axis=1, keepdims=True)
    return state


def _still(graph: Graph, model: ModelSpec, batch: int, seed: int) -> dict[str, NDArray[Any]]:
    """Draw a state without gradients, in which small constants show.

    With weights of zero no image has a gradient. Adam's means are so small that its epsilon counts,
    and the images are zero, so that its step is all that is left of them.
    """
    state = _ordinary(graph, model, batch, seed)
    for name, array in state.items():
        if name.startswith(PARAMETER) or (name == "images" and "mean" in state):
            array *= 0
        elif name == "mean":
            array *= 1e-6
        elif name == "square":
            array *= 1e-12
    return state


def _drawn(
    spec: TensorSpec, model: ModelSpec, batch: int, random: np.random.Generator
) -> NDArray[Any]:
    name, shape = spec.name, spec.shape_for(batch)
    values: Any
    if not shape:
        values = _SCALARS.get(name.removeprefix(SETTING), _OTHER_SETTING)
    elif name == "labels":
        values = random.integers(0, model.classes, shape)
    elif spec.dtype == "int64":  # a count
        values = np.full(shape, 4)
    elif name.startswith(PARAMETER) and len(shape) > 1:
        values = random.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))
    elif name.startswith((MOMENTUM, ANCHOR)) or name == "mean":
        values = random.standard_normal(shape) * 0.01
    elif name == "square":
        values = random.uniform(0.5, 1.5, shape) * 1e-4
    elif name == "sample_weights":
        values = random.uniform(0.5, 1.5, shape) / batch
    elif name.startswith((PARAMETER, BUFFER)):  # biases, factors, variances
        values = random.uniform(0.1, 1.0, shape)
    elif name == "images":
        values = random.standard_normal(shape)
    elif name == "cam":
        # Few features speak for the class. Of many, one is nearly always close to zero. Its
        # logarithm decides the gradient and has no exact digits in float32, in torch neither.
        values = random.uniform(0.5, 1.0, shape) * (random.permutation(shape[1]) < _ACTIVE_FEATURES)
    else:  # features, which are not negative
        values = random.uniform(0.0, 1.0, shape)
    return np.asarray(values, spec.numpy_dtype)
