"""Makes a plan: exports each graph and checks it. That takes about twenty seconds.

The coordinator runs this module as a program, because an export blocks the interpreter and needs
1 GB or more: `python -m hfmds.plans.making FILE SPEC`, with the plan's spec as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules.dropout import _DropoutNd

from hfmds.domain.methods import METHODS
from hfmds.domain.recipe import ModelSpec
from hfmds.errors import HfmdsError, InvalidInput
from hfmds.plans.check import check
from hfmds.plans.format import Graph, Plan, PlanSpec, encode_plan
from hfmds.plans.onnx_export import export
from hfmds.plans.steps import Steps


def make_plan(spec: PlanSpec) -> Plan:
    """Make a plan whose graphs compute what torch computes.

    Raises InvalidInput: a plan cannot express the network.
    Raises CorruptData: an exported graph differs from torch.
    """
    model, method = spec.model, METHODS[spec.method]
    steps, reference = Steps(model, method), Steps(model, method, torch.float64)
    _require_no_dropout(steps.network, model)
    return Plan(
        model,
        spec.method,
        steps.features,
        {name: _checked_graph(name, model, steps, reference) for name in spec.graphs},
    )


def _require_no_dropout(network: nn.Module, model: ModelSpec) -> None:
    """Refuse dropout layers by name. The export finds other random operators, without a name."""
    for name, layer in network.named_modules():
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            raise InvalidInput(
                f"layer {name!r} of {model.architecture!r} is {layer}, which draws random numbers "
                "as it trains; a plan cannot. Leave it out, or let devices use the torch engine"
            )


def _checked_graph(name: str, model: ModelSpec, steps: Steps, reference: Steps) -> Graph:
    what = f"graph {name!r} of {model.architecture!r}"
    try:
        graph = export(steps.by_name[name])
    except HfmdsError:
        raise
    except (DataDependentOutputException, GuardOnDataDependentSymNode) as error:
        raise InvalidInput(
            f"{what} cannot be exported: its loss or network makes a Python number of a tensor. "
            f"Settings of method {steps.method.name} are tensors in a trace: compute with them, "
            "without `if`, or say needs_torch in the method's settings"
        ) from error
    except Exception as error:  # torch's exporter raises many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1][:300]
        raise InvalidInput(
            f"{what} cannot be exported ({reason}); let its devices use the torch engine"
        ) from error
    check(graph, steps.by_name[name], reference.by_name[name], model, what)
    return graph


def main() -> None:
    """Make a plan in this process; report an error as one line on standard error."""
    torch.set_num_threads(1)
    file, values = Path(sys.argv[1]), json.loads(sys.argv[2])
    spec = PlanSpec(ModelSpec(**values["model"]), values["method"], tuple(values["graphs"]))
    try:
        file.write_bytes(encode_plan(make_plan(spec)))
    except HfmdsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
