"""Compares a graph with torch before anyone gets it, since an export can go wrong without an error.

One call from the same state: the graph in onnxruntime, in float32, and the step in torch, by
torch's own kernels and in float64. Every output is compared: parameters, momentum, buffers, the
synthetic images and both of Adam's means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from hfmds.domain.recipe import ModelSpec
from hfmds.errors import CorruptData
from hfmds.onnx_runtime import onnxruntime
from hfmds.plans.format import ANCHOR, BUFFER, MOMENTUM, PARAMETER, Graph, TensorSpec
from hfmds.plans.steps import Step

TOLERANCE = 2e-5
"""How far from torch an output may be, as a part of its largest value; typical is 1e-6."""

_BATCHES = (5, 1)  # it must not have become a constant
# Rounding may turn a ReLU or choose another maximum, in one draw of many; errors are in all.
_DRAWS = 3
_SPOKEN_FOR = 8  # features that speak for a class
_SCALARS = {
    "learning_rate": 0.05,
    "momentum": 0.9,
    "weight_decay": 0.01,
    "mu": 0.5,
    "matching_weight": 0.7,
    "step": 3,
}

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


def check(graph: Graph, step: Step, model: ModelSpec, what: str) -> None:
    """CorruptData: the graph does not compute what the step does, which is in float64."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # it warns of what it does not fold
    session = onnxruntime.InferenceSession(graph.onnx, options, providers=["CPUExecutionProvider"])
    for batch in _BATCHES:
        for draw_state in (_ordinary, _still):
            failures = []
            for draw in range(_DRAWS):
                given = draw_state(graph, model, batch, np.random.default_rng(draw))
                failure = _difference(session, step, given, refusable=batch == 1)
                if failure is None:
                    break
                failures.append(failure)
            else:
                raise CorruptData(
                    f"{what} differs from torch with {batch} images: {failures[-1]}; it is not "
                    "used. Try other versions of torch and onnxruntime on the coordinator, or "
                    "let devices use the torch engine"
                )


def _difference(
    session: onnxruntime.InferenceSession, step: Step, given: Arrays, *, refusable: bool
) -> str | None:
    """What is wrong with the graph's outputs; None: nothing."""
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in given.items()}
    try:
        expected = step.compute(
            {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
        )
    except ValueError:
        # BatchNorm refuses a batch of one value per channel; a device's engine then never has one.
        if refusable:
            return None
        raise
    names = list(expected)
    try:
        results = session.run(names, dict(given))
    except Exception as error:  # noqa: BLE001  # whoever waits for it gets it
        return f"onnxruntime fails: {error}"
    for name, found in zip(names, results, strict=True):
        wanted = expected[name].detach().numpy()
        if found.shape != wanted.shape:
            return f"{name} is {list(found.shape)}, in torch {list(wanted.shape)}"
        apart = float(np.abs(found - wanted).max()) if wanted.size else 0.0
        allowed = TOLERANCE * max(float(np.abs(wanted).max()), 1e-12) if wanted.size else 0.0
        if not apart <= allowed:  # also of a NaN
            return f"{name} is {apart:.2g} apart, more than {allowed:.2g}"
    return None


def _ordinary(
    graph: Graph, model: ModelSpec, batch: int, random: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """Numbers as they come in training."""
    given = {s.name: _drawn(s, model, batch, random) for s in graph.inputs}
    for name, anchor in given.items():
        if name.startswith(ANCHOR):
            anchor += given[PARAMETER + name.removeprefix(ANCHOR)]
    if "target" in given:
        given["target"] /= given["target"].sum(axis=1, keepdims=True)
    return given


def _still(
    graph: Graph, model: ModelSpec, batch: int, random: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """With weights of zero no image has a gradient, so that even Adam's epsilon makes a difference.

    torch's optimiser for ONNX once took it for zero.
    """
    given = _ordinary(graph, model, batch, random)
    for name, array in given.items():
        if name.startswith(PARAMETER):
            array *= 0
        elif name == "mean":
            array *= 1e-6
        elif name == "square":
            array *= 1e-12
    return given


def _drawn(
    spec: TensorSpec, model: ModelSpec, batch: int, random: np.random.Generator
) -> NDArray[Any]:
    name, shape = spec.name, spec.shape_for(batch)
    values: Any
    if name in _SCALARS:
        values = _SCALARS[name]
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
        # Of few features. Of all it would nearly always find one close to zero, whose logarithm
        # decides the gradient, and has no digits in float32, in torch's own kernels neither.
        values = random.uniform(0.5, 1.0, shape) * (random.permutation(shape[1]) < _SPOKEN_FOR)
    else:  # features and what is made of them: not negative
        values = random.uniform(0.0, 1.0, shape)
    return np.asarray(values, spec.numpy_dtype)
