"""How much memory a graph's tensors need, from the graph alone.

The operators are gone through in order; a tensor lives from the operator that makes it to the last
one that uses it, inputs and outputs all the time. onnxruntime takes its memory in pieces, and up to
twice as much of it: what depends on the batch is counted twice. So it was said to be 46, 313 and
549 MB where 43, 235 and 330 were measured (training, the paper's CNN with 20 and 200 images, and
the ResNet with 200).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

_TAKEN = 2  # how much of its memory onnxruntime may have taken for what it needs

# What has the memory of what it is made from, in onnxruntime too.
_VIEWS = {"alias", "detach", "squeeze", "unsqueeze", "view", "_unsafe_view", "reshape"}


def memory_of(program: ExportedProgram) -> tuple[int, int]:
    """Bytes that do not depend on the batch, and those for each image."""
    small, large = (_peak_bytes(program, batch) for batch in (1, 101))
    per_image = -(-(large - small) // 100)
    return max(small - per_image, 0), _TAKEN * per_image


def _peak_bytes(program: ExportedProgram, batch: int) -> int:
    nodes = list(program.graph.nodes)
    owners = {node: node for node in nodes}
    last_use: dict[Node, int] = {}
    for place, node in enumerate(nodes):
        if node.op == "call_function" and _name(node) in _VIEWS:
            owners[node] = owners[node.all_input_nodes[0]]
        for used in (node, *node.all_input_nodes):
            lasts = used.op == "placeholder"
            last_use[owners[used]] = len(nodes) if lasts else place
    sizes = {node: _bytes(node.meta.get("val"), batch) for node in nodes if owners[node] is node}
    live = sum(size for node, size in sizes.items() if node.op == "placeholder")
    peak = live
    ends: dict[int, list[Node]] = {}
    for node, place in last_use.items():
        ends.setdefault(place, []).append(node)
    for place, node in enumerate(nodes):
        if node.op == "call_function" and owners[node] is node:
            live += sizes[node]
        peak = max(peak, live)
        live -= sum(sizes[over] for over in ends.get(place, ()))
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
