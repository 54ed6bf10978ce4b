"""Who may import whom, as the rules of the house say (CONTRIBUTING.md), read from the sources."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("hfmds", "coordinator", "edge_client", "synthesis_store")
SERVICES = ("coordinator", "edge_client", "synthesis_store")

# What a room may import besides the standard library and itself. Modules by prefix.
ROOMS: dict[str, set[str]] = {
    "hfmds.errors": set(),
    "hfmds.digest": {"hfmds.errors"},
    "hfmds.event_chain": set(),
    "hfmds.state_machine": {"hfmds.errors"},
    "hfmds.onnx_runtime": {"onnxruntime"},
    "hfmds.algorithm": {"hfmds.errors", "hfmds.onnx_runtime", "numpy", "onnx", "torch"},
    "hfmds.data": {
        "hfmds.errors",
        "hfmds.algorithm.recipes",
        "hfmds.algorithm.seeds",
        "hfmds.algorithm.types",
        "numpy",
        "PIL",
        "sklearn",
        "torchvision",
    },
    "hfmds.service": {
        "hfmds.errors",
        "cryptography",
        "google.protobuf.message",
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "opentelemetry",
        "prometheus_client",
        "pydantic",
        "pydantic_core",
        "pydantic_settings",
    },
    "hfmds.pki": {
        "hfmds.errors",
        "hfmds.service.identity",
        "hfmds.service.public_keys",
        "hfmds.storage.files",
        "cryptography",
    },
    "hfmds.storage": {
        "hfmds.errors",
        "hfmds.digest",
        "hfmds.event_chain",
        "alembic",
        "obstore",
        "sqlalchemy",
    },
    "hfmds.wire": {
        "hfmds.errors",
        "hfmds.digest",
        "hfmds.event_chain",
        "hfmds.v1",
        "hfmds.algorithm.blocks",
        "hfmds.algorithm.compression",
        "hfmds.algorithm.device_evaluation",
        "hfmds.algorithm.histograms",
        "hfmds.algorithm.limits",
        "hfmds.algorithm.methods.settings",
        "hfmds.algorithm.pool_policy",
        "hfmds.algorithm.recipes",
        "hfmds.algorithm.types",
        "hfmds.service",
        "hfmds.storage",
        "google.protobuf",
        "numpy",
        "safetensors",
    },
    "hfmds.plans": {
        "hfmds.errors",
        "hfmds.digest",
        "hfmds.algorithm",
        "hfmds.onnx_runtime",
        "numpy",
        "onnx",
        "safetensors",
        "torch",
    },
    "hfmds.experiments": {
        "hfmds.errors",
        "hfmds.algorithm",
        "hfmds.data",
        "matplotlib",
        "numpy",
        "safetensors",
        "sklearn",
        "threadpoolctl",
        "torch",
        "yaml",
    },
    "hfmds.cli": {
        "hfmds.errors",
        "hfmds.digest",
        "hfmds.event_chain",
        "hfmds.algorithm.methods.settings",
        "hfmds.algorithm.onnx_model",
        "hfmds.algorithm.histograms",
        "hfmds.algorithm.pixels",
        "hfmds.algorithm.pool",
        "hfmds.algorithm.pool_policy",
        "hfmds.algorithm.privacy",
        "hfmds.algorithm.recipes",
        "hfmds.algorithm.types",
        "hfmds.data",
        "hfmds.experiments",
        "hfmds.pki",
        "hfmds.service",
        "hfmds.storage",
        "hfmds.wire",
        "PIL",
        "matplotlib",
        "numpy",
        "pydantic",
        "rich",
        "typer",
    },
    "coordinator": {
        "hfmds",
        "PIL",
        "aiohttp",
        "alembic",
        "grpc",
        "numpy",
        "prometheus_client",
        "pydantic",
        "sqlalchemy",
        "torch",
    },
    "edge_client": {
        "hfmds",
        "grpc",
        "numpy",
        "prometheus_client",
        "pydantic",
        "torch",
    },
    "synthesis_store": {
        "hfmds",
        "alembic",
        "grpc",
        "numpy",
        "prometheus_client",
        "pydantic",
        "sqlalchemy",
        "usearch",
    },
}

# The only files of their room that may know torch; the others stay light.
TORCH_FILES = {
    "hfmds/algorithm/adam.py",
    "hfmds/algorithm/architectures.py",
    "hfmds/algorithm/compute_device.py",
    "hfmds/algorithm/convolution.py",
    "hfmds/algorithm/evaluation.py",
    "hfmds/algorithm/linear.py",
    "hfmds/algorithm/methods/fedavg.py",
    "hfmds/algorithm/methods/fedgan.py",
    "hfmds/algorithm/methods/fedgen.py",
    "hfmds/algorithm/methods/fedmix.py",
    "hfmds/algorithm/methods/fedprox.py",
    "hfmds/algorithm/methods/moon.py",
    "hfmds/algorithm/methods/pooled.py",
    "hfmds/algorithm/methods/registry.py",
    "hfmds/algorithm/models.py",
    "hfmds/algorithm/networks.py",
    "hfmds/algorithm/onnx_model.py",
    "hfmds/algorithm/process_workers.py",
    "hfmds/algorithm/split_model.py",
    "hfmds/algorithm/synthesis.py",
    "hfmds/algorithm/training.py",
    "hfmds/data/torchvision_files.py",
    "hfmds/experiments/features.py",
    "hfmds/experiments/flops.py",
    "hfmds/experiments/worker.py",
    "hfmds/plans/check.py",
    "hfmds/plans/export.py",
    "hfmds/plans/lowerings.py",
    "hfmds/plans/making.py",
    "hfmds/plans/memory.py",
    "hfmds/plans/steps.py",
    "coordinator/learning.py",
    "edge_client/torch_engine.py",
}


def sources() -> list[Path]:
    return [
        path
        for package in PACKAGES
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        if path.parent != REPOSITORY / "hfmds" / "v1"
    ]


def module_name(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of its syntax tree, which several rules look at."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            # `from hfmds.v1 import x_pb2` imports hfmds.v1.x_pb2.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def room_of(module: str) -> str:
    return next(room for room in ROOMS if within(module, room))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_module_imports_only_what_its_room_may(path: Path) -> None:
    module = module_name(path)
    if module == "hfmds":
        assert path.read_text() == "", "hfmds/__init__.py stays empty"
        return
    room = room_of(module)
    allowed = ROOMS[room] | {room, "__future__"}
    for imported in imports(path):
        standard = imported.partition(".")[0] in sys.stdlib_module_names
        assert standard or any(within(imported, one) for one in allowed), (
            f"{module} imports {imported}, which {room} may not"
        )


@pytest.mark.parametrize("service", SERVICES)
def test_services_never_import_each_other(service: str) -> None:
    others = [other for other in SERVICES if other != service]
    for path in sources():
        if path.relative_to(REPOSITORY).parts[0] == service:
            met = [name for name in imports(path) if any(within(name, other) for other in others)]
            assert not met, f"{path} imports {met}"


def test_only_wire_and_servicers_know_protobuf_stubs() -> None:
    for path in sources():
        relative = path.relative_to(REPOSITORY)
        if relative.parts[:2] != ("hfmds", "wire") and not path.name.endswith("servicer.py"):
            met = [name for name in imports(path) if within(name, "hfmds.v1")]
            assert not met, f"{relative} imports {met}"


def test_only_settings_read_the_environment() -> None:
    for path in sources():
        relative = str(path.relative_to(REPOSITORY))
        reads = [
            node
            for node in nodes(path)
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
        ]
        # process.py looks for misspelt names; a child process of the demo inherits the rest;
        # onnx_runtime.py and processor.py only set a variable.
        others = ("service/process.py", "service/telemetry.py", "cli/demo_services.py")
        others += ("hfmds/onnx_runtime.py", "edge_client/processor.py")
        assert not reads or relative.endswith(("settings.py", *others)), (
            f"{relative} reads the environment"
        )


def test_torch_is_known_to_few() -> None:
    for path in sources():
        relative = str(path.relative_to(REPOSITORY))
        if any(within(name, one) for name in imports(path) for one in ("torch", "torchvision")):
            assert relative in TORCH_FILES, f"{relative} imports torch"
