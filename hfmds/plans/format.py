"""A plan: the steps that a device computes, as ONNX graphs, so that the device needs no torch.

A plan is one safetensors file. Each graph is a uint8 tensor of the graph's name, and the header
holds the manifest as JSON. A plan belongs to a model and a method. It holds no weights. Writing is
deterministic: equal plans have equal digests. docs/plans.md lists the inputs and outputs of each
graph. This module imports no torch and runs no graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec, Recipe
from hfmds.errors import InvalidInput

FORMAT_VERSION = 1
OPSET = 18
"""The version of ONNX's operators in our graphs."""

MAX_PLAN_BYTES = 64 * 1024 * 1024

GRAPHS = (
    "train",  # one step of SGD on the loss of a method
    "features",  # features and logits of images
    "targets",  # hard features, their class activation, and the distributions to match
    "synthesise",  # one step of Adam on synthetic images
    "assess",  # losses and gradient norms, which show a broken synthesis
    "evaluate",  # loss and number of correct answers on labelled images
)

# Prefixes of a weight's name in a graph's inputs. The output NEXT + input replaces that input at
# the next step.
PARAMETER, MOMENTUM, ANCHOR, BUFFER = "parameter:", "momentum:", "anchor:", "buffer:"
NEXT = "next:"

SETTING = "setting:"
"""Prefix of the name of a method's setting in a graph's inputs."""

BATCH = "n"
"""The batch dimension: at least 1, and each call may choose it."""

_MANIFEST = "plan"  # its key in the header
_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "int64": np.dtype(np.int64)}

Dimension: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a graph."""

    name: str
    dtype: str  # "float32" or "int64"
    shape: tuple[Dimension, ...]  # BATCH, or a number

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise InvalidInput(
                f"tensor {self.name!r} is {self.dtype}; in a plan it is one of {', '.join(_DTYPES)}"
            )
        if not all(d == BATCH or (isinstance(d, int) and d >= 0) for d in self.shape):
            raise InvalidInput(f"tensor {self.name!r} has the shape {list(self.shape)}")

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype in numpy."""
        return _DTYPES[self.dtype]

    def shape_for(self, batch: int) -> tuple[int, ...]:
        """Return the shape for a batch of this size."""
        return tuple(batch if isinstance(d, str) else d for d in self.shape)


@dataclass(frozen=True, slots=True)
class Graph:
    """A pure function of tensors: an ONNX file with its inputs and outputs."""

    onnx: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    # Memory of all tensors, inputs and outputs included: a fixed part and a part for each image.
    fixed_bytes: int
    bytes_per_image: int

    def __post_init__(self) -> None:
        if self.fixed_bytes < 0 or self.bytes_per_image < 0:
            raise InvalidInput("a graph of the plan states a negative memory; fetch the plan again")

    def memory_bytes(self, batch: int) -> int:
        """Return the memory of one call, weights included, without the runtime itself."""
        return self.fixed_bytes + batch * self.bytes_per_image


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """What a plan is made for: a model, a method, and the graphs that a run of them needs."""

    model: ModelSpec
    method: str = Hfmds.name
    graphs: tuple[str, ...] = GRAPHS


def plan_spec(recipe: Recipe) -> PlanSpec:
    """Describe the plan of a run. Devices evaluate by a plan even if its method needs torch."""
    method = recipe.method
    graphs = GRAPHS if isinstance(method, Hfmds) else ("train", "evaluate")
    return PlanSpec(recipe.model, method.name, ("evaluate",) if method.needs_torch else graphs)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a device computes for a model and a method. The weights come with each task."""

    model: ModelSpec
    method: str
    features: int  # of the model's extractor
    graphs: Mapping[str, Graph]  # by names of GRAPHS
    opset: int = OPSET

    def graph(self, name: str) -> Graph:
        """Return one graph; InvalidInput if the plan has none of that name."""
        if name not in self.graphs:
            raise InvalidInput(
                f"the plan of {self.model.architecture} has no graph {name!r}; update the "
                "coordinator, or use the torch engine"
            )
        return self.graphs[name]


def encode_plan(plan: Plan) -> bytes:
    """Encode the plan as a file."""
    manifest = {
        "format": FORMAT_VERSION,
        "opset": plan.opset,
        "model": asdict(plan.model),
        "method": plan.method,
        "features": plan.features,
        "graphs": {name: _described(plan.graphs[name]) for name in sorted(plan.graphs)},
    }
    return save(
        {name: np.frombuffer(graph.onnx, np.uint8) for name, graph in plan.graphs.items()},
        {_MANIFEST: json.dumps(manifest, sort_keys=True, separators=(",", ":"))},
    )


def read_plan(path: Path, what: str, *, max_opset: int = OPSET) -> Plan:
    """Read a plan from a file; `what` names the file in errors.

    `max_opset` is the highest version of operators that the caller's runtime knows.

    Raises InvalidInput: the file is malformed, or made for another version.
    """
    size_bytes = path.stat().st_size
    if size_bytes > MAX_PLAN_BYTES:
        raise InvalidInput(f"{what} has {size_bytes} bytes; a plan has at most {MAX_PLAN_BYTES}")
    try:
        tensors: Any = safe_open(path, framework="np")
        manifest = json.loads((tensors.metadata() or {})[_MANIFEST])
        _require_versions(manifest, what, max_opset)
        return Plan(
            model=ModelSpec(**manifest["model"]),
            method=str(manifest["method"]),
            features=int(manifest["features"]),
            graphs={
                name: _graph(tensors.get_tensor(name), entry, f"{what}, graph {name!r}")
                for name, entry in manifest["graphs"].items()
                if name in GRAPHS  # a later version may have added others
            },
            opset=manifest["opset"],
        )
    except (
        SafetensorError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        AttributeError,
        RecursionError,
    ) as error:
        raise InvalidInput(
            f"{what} is not a plan ({type(error).__name__}: {error}); fetch it again, or update "
            "the coordinator"
        ) from error


def _described(graph: Graph) -> dict[str, Any]:
    digest = digest_of(graph.onnx)
    return {
        "sha256": digest.sha256,
        "size_bytes": digest.size_bytes,
        "inputs": [asdict(spec) for spec in graph.inputs],
        "outputs": [asdict(spec) for spec in graph.outputs],
        "fixed_bytes": graph.fixed_bytes,
        "bytes_per_image": graph.bytes_per_image,
    }


def _require_versions(manifest: dict[str, Any], what: str, max_opset: int) -> None:
    version, opset = manifest["format"], manifest["opset"]
    if version != FORMAT_VERSION:
        raise InvalidInput(
            f"{what} is of format {version}, this version reads {FORMAT_VERSION}; update "
            f"{'this device' if version > FORMAT_VERSION else 'the coordinator'}"
        )
    if opset > max_opset:
        raise InvalidInput(
            f"{what} has ONNX operators of version {opset}, the runtime here knows versions up "
            f"to {max_opset}; update onnxruntime"
        )


def _graph(onnx: NDArray[np.uint8], entry: dict[str, Any], what: str) -> Graph:
    if onnx.dtype != np.uint8 or onnx.ndim != 1:
        raise InvalidInput(f"{what}: it is {onnx.dtype} {list(onnx.shape)}, not a row of bytes")
    data = onnx.tobytes()
    if digest_of(data) != Digest(entry["sha256"], entry["size_bytes"]):
        raise InvalidInput(f"{what}: its bytes are not those of the manifest; fetch the plan again")
    return Graph(
        onnx=data,
        inputs=_specs(entry["inputs"]),
        outputs=_specs(entry["outputs"]),
        fixed_bytes=int(entry["fixed_bytes"]),
        bytes_per_image=int(entry["bytes_per_image"]),
    )


def _specs(entries: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(spec["name"], spec["dtype"], tuple(spec["shape"])) for spec in entries)
