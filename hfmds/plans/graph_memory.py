"""Estimates how much memory a graph's tensors need.

A tensor lives from the operator that makes it to the last operator that uses it. Inputs and outputs
live all the time. onnxruntime allocates in pieces, up to twice what it needs, so the part that
depends on the batch counts twice.

| training | estimate | measured |
|---|---|---|
| the paper's CNN, 20 images | 46 MB | 43 MB |
| the paper's CNN, 200 images | 313 MB | 235 MB |
| the ResNet, 200 images | 549 MB | 330 MB |
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

_OVERHEAD = 2  # times what is needed: how much onnxruntime may allocate

# Operators whose output shares the memory of their input, also in onnxruntime.
_VIEWS = {"alias", "detach", "squeeze", "unsqueeze", "view", "_unsafe_view", "reshape"}


def memory_of(program: ExportedProgram) -> tuple[int, int]:
    """Return the bytes that do not depend on the batch, and the bytes for each image."""
    small, large = (_peak_bytes(program, batch) for batch in (1, 101))
    per_image = -(-(large - small) // 100)
    return max(small - per_image, 0), _OVERHEAD * per_image


def _peak_bytes(program: ExportedProgram, batch: int) -> int:
    nodes = list(program.graph.nodes)
    owners = {node: node for node in nodes}
    last_use: dict[Node, int] = {}
    for position, node in enumerate(nodes):
        if node.op == "call_function" and _name(node) in _VIEWS:
            owners[node] = owners[node.all_input_nodes[0]]
        for used in (node, *node.all_input_nodes):
            lasts = used.op == "placeholder"
            last_use[owners[used]] = len(nodes) if lasts else position
    sizes = {node: _bytes(node.meta.get("val"), batch) for node in nodes if owners[node] is node}
    live = sum(size for node, size in sizes.items() if node.op == "placeholder")
    peak = live
    ends: dict[int, list[Node]] = {}
    for node, position in last_use.items():
        ends.setdefault(position, []).append(node)
    for position, node in enumerate(nodes):
        if node.op == "call_function" and owners[node] is node:
            live += sizes[node]
        peak = max(peak, live)
        live -= sum(sizes[ended] for ended in ends.get(position, ()))
    return peak


def _name(node: Node) -> str:
    target = node.target
    return target._opname if isinstance(target, torch._ops.OpOverload) else ""


def _bytes(value: Any, batch: int) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    count = value.numel()
    if isinstance(count, torch.SymInt):
        expression = count.node.expr
        count = int(expression.subs(dict.fromkeys(expression.free_symbols, batch)))
    return int(count) * value.element_size()
