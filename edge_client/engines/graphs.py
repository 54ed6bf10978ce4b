"""Runs a plan's graphs in onnxruntime.

Tensors go in and come out by name. They stay onnxruntime's own from one call to the next, so
weights are not copied at every step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.learning import Weights
from hfmds.domain.methods import Method
from hfmds.domain.recipe import ModelSpec
from hfmds.domain.validation import fields_of
from hfmds.errors import ConfigurationError, InvalidInput, LimitExceeded
from hfmds.onnx_runtime import onnxruntime
from hfmds.plans.format import (
    BUFFER,
    OPSET,
    PARAMETER,
    SETTING,
    Graph,
    Plan,
    TensorSpec,
    read_plan,
)

Tensors: TypeAlias = Mapping[str, Any]
"""onnxruntime's own tensors, by name."""

_ON_A_CPU = "CPUExecutionProvider"
_ON_CUDA = "CUDAExecutionProvider"
# Providers that `auto` may take, the best first. TensorRT and QNN are left out: they compile each
# graph again for each batch size, which takes minutes. onnxruntime itself would put them first.
_AUTOMATIC = (
    _ON_CUDA,
    "ROCMExecutionProvider",
    "CoreMLExecutionProvider",
    "DmlExecutionProvider",
    "OpenVINOExecutionProvider",
    "NnapiExecutionProvider",
    _ON_A_CPU,
)

_ERRORS, _SILENT = 3, 4  # lowest severity that onnxruntime logs

# A graph that returns its input. The last byte is missing: the version of its operators.
_LEAST_GRAPH = (
    b'\x08\x07:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04'
    b"\n\x02\x08\x01b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10"
)


def providers_for(compute_device: str, available: Sequence[str]) -> list[str]:
    """List the providers that onnxruntime may compute with, the best first.

    Raises ConfigurationError: onnxruntime has no such provider here.
    """
    if compute_device == "cpu":
        return [_ON_A_CPU]
    if compute_device == "auto":
        return [provider for provider in _AUTOMATIC if provider in available]
    if compute_device == "mps":
        raise ConfigurationError(
            "HFMDS_COMPUTE_DEVICE is mps, which is torch's; set HFMDS_ENGINE to torch, or let "
            "onnxruntime choose what it has (CoreML, ...) with auto"
        )
    if _ON_CUDA not in available:
        raise ConfigurationError(
            "HFMDS_COMPUTE_DEVICE is cuda, but onnxruntime here has no CUDA (it has "
            f"{', '.join(available)}); install onnxruntime-gpu, or set it to cpu or auto"
        )
    return [_ON_CUDA, _ON_A_CPU]


class Graphs:
    """The graphs of one plan. Each is opened at its first call."""

    def __init__(
        self,
        plan: Plan,
        providers: Sequence[str],
        threads: int,
        left_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`left_bytes` tells how much memory a call may use; 0 means unknown."""
        self._plan = plan
        self._providers = list(providers)
        self._threads = threads
        self._left_bytes = left_bytes
        self._sessions: dict[str, Any] = {}

    @property
    def model(self) -> ModelSpec:
        """The model that the plan is for."""
        return self._plan.model

    @property
    def method(self) -> str:
        """The name of the method that the plan is for."""
        return self._plan.method

    def memory_bytes(self, name: str, batch: int) -> int:
        """Estimate the memory of a call with a batch of this size."""
        return self._plan.graph(name).memory_bytes(batch)

    def require_memory(self, name: str, batch: int) -> None:
        """Raise LimitExceeded if a call with this batch needs more memory than is left."""
        needed, left = self.memory_bytes(name, batch), self._left_bytes()
        if left and needed > left:
            raise LimitExceeded(
                f"{name} with {batch} images needs about {needed / 1e6:.0f} MB of memory, and "
                f"{left / 1e6:.0f} MB are left here; free some or raise HFMDS_MAX_MEMORY_BYTES, "
                "or let the run ask for devices with more memory"
            )

    def call(self, name: str, *given: Tensors) -> dict[str, Any]:
        """Run a graph and return its outputs. It ignores tensors that the graph does not take."""
        graph = self._plan.graph(name)
        feeds = {spec.name: _input_of(name, spec, given) for spec in graph.inputs}
        wanted = [spec.name for spec in graph.outputs]
        session = self._sessions.get(name) or self._open(name, graph)
        return dict(zip(wanted, session.run_with_ort_values(wanted, feeds), strict=True))

    def weights(self, name: str, weights: Weights) -> dict[str, Any]:
        """Convert weights to the graph's inputs.

        Raises InvalidInput: the weights are of another model.
        """
        inputs: dict[str, Any] = {}
        for spec in self._plan.graph(name).inputs:
            kind, _, own_name = spec.name.partition(":")
            if f"{kind}:" not in (PARAMETER, BUFFER):
                continue
            if own_name not in weights:
                raise InvalidInput(
                    f"these weights are of another model than the plan: {own_name!r} is missing; "
                    "check the recipe's model against where the weights come from"
                )
            values = weights[own_name]
            if values.shape != spec.shape:
                raise InvalidInput(
                    f"weight {own_name!r} has shape {list(values.shape)}, in the plan "
                    f"{list(spec.shape)}; check the recipe's channels, image size and classes"
                )
            inputs[spec.name] = tensor(values.astype(spec.numpy_dtype))
        return inputs

    def settings(self, name: str, method: Method) -> dict[str, Any]:
        """Return the graph's inputs that are settings of the method."""
        own = fields_of(type(method))
        taken = (n for n in self.names(name, SETTING) if n in own)
        return {SETTING + n: scalar(getattr(method, n)) for n in taken}

    def names(self, name: str, prefix: str) -> Iterator[str]:
        """Yield the graph's inputs whose names start with the prefix, without the prefix."""
        for spec in self._plan.graph(name).inputs:
            if spec.name.startswith(prefix):
                yield spec.name.removeprefix(prefix)

    def _open(self, name: str, graph: Graph) -> Any:
        options = _sharing_memory()
        options.intra_op_num_threads = self._threads
        # Without spinning, two threads train a step in 17 ms and 24 ms of processor time. With
        # spinning they take 18 ms and 34 ms.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.inter_op_num_threads = 1
        # Batches differ in size. Memory patterns take twice the memory and save no time.
        options.enable_mem_pattern = False
        # The next level changes layouts for convolutions with constant weights. Here the weights
        # are inputs, so it would only add copies.
        extended = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.graph_optimization_level = extended
        try:
            session = onnxruntime.InferenceSession(graph.onnx, options, providers=self._providers)
        except Exception as error:  # onnxruntime has no common base class
            raise InvalidInput(
                f"onnxruntime {onnxruntime.__version__} cannot load graph {name!r} of the plan "
                f"({type(error).__name__}); update onnxruntime here, or use the torch engine"
            ) from error
        self._sessions[name] = session
        return session


def give_back_memory() -> None:
    """Return unused memory to the system; call this between tasks.

    onnxruntime keeps all memory it once had. A device with little memory would count it as used,
    and refuse its second task.
    """
    shrinking = onnxruntime.RunOptions()
    shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    nothing = {"x": tensor(np.zeros(1, np.float32))}
    _least_session().run_with_ort_values(["y"], nothing, shrinking)
    _give_back_freed_memory()


@cache
def known_opset() -> int:
    """Find the latest version of ONNX's operators that onnxruntime knows, by trying."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    known = OPSET
    while True:
        try:
            graph = _LEAST_GRAPH + bytes([known + 1])
            onnxruntime.InferenceSession(graph, options, providers=[_ON_A_CPU])
        except Exception:  # noqa: BLE001  # onnxruntime has no common base class
            return known
        known += 1


@cache
def _least_session() -> Any:
    graph = _LEAST_GRAPH + bytes([OPSET])
    return onnxruntime.InferenceSession(graph, _sharing_memory(), providers=[_ON_A_CPU])


def _sharing_memory() -> Any:
    """Return session options with which graphs share one arena."""
    _share_memory()
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.log_severity_level = _ERRORS
    return options


@cache
def _share_memory() -> None:
    """Let all graphs of this process allocate from one arena.

    With an arena for each graph, training cannot use the memory of synthesis. A device that trains
    the paper's CNN on 10 + 10 images and synthesises 100 then peaks at 308 MB instead of 205 MB.
    """
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    # The arena grows by the bytes asked for, not to the next power of two. -1: the default.
    as_needed = onnxruntime.OrtArenaCfg(0, 1, -1, -1)
    onnxruntime.create_and_register_allocator(memory, as_needed)


def open_graphs(
    path: Path, providers: Sequence[str], threads: int, left_bytes: Callable[[], int]
) -> Graphs:
    """Open the plan in a file.

    Raises InvalidInput: the file is no plan, or made for other versions.
    """
    plan = read_plan(path, "the plan", max_opset=known_opset())
    return Graphs(plan, providers, threads, left_bytes)


def tensor(values: NDArray[Any]) -> Any:
    """Wrap an array for onnxruntime. The caller must not change the array afterwards."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(values))


def scalar(value: float) -> Any:
    """Wrap a number for onnxruntime."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.array(value, np.float32))


def array_of(value: Any) -> NDArray[Any]:
    """Return a tensor's values."""
    values: NDArray[Any] = value.numpy()
    return values


def number_of(value: Any) -> float:
    """Return the value of a tensor that holds one number."""
    return float(array_of(value))


def _input_of(graph: str, spec: TensorSpec, given: Sequence[Tensors]) -> Any:
    for tensors in given:
        if spec.name in tensors:
            return tensors[spec.name]
    raise InvalidInput(
        f"graph {graph!r} of the plan takes {spec.name!r}, which this version does not know; "
        "update the device"
    )


def _give_back_freed_memory() -> None:
    """Return free memory to the kernel at once. Other C libraries than glibc do it themselves."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
