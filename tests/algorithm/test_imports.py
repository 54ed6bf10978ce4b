from __future__ import annotations

import subprocess
import sys

TORCH_FREE = [
    "aggregation",
    "compression",
    "divergence",
    "engine",
    "limits",
    "methods.settings",
    "parts",
    "pixels",
    "pool",
    "privacy",
    "prototypes",
    "recipes",
    "sampling",
    "seeds",
    "types",
]


def test_what_the_store_and_torch_free_devices_import_needs_no_torch():
    modules = ["hfmds.data.sources", "hfmds.data.splits", "hfmds.data.statistics"]
    modules += [f"hfmds.algorithm.{name}" for name in TORCH_FREE]
    unwanted = "{'torch', 'sklearn', 'grpc'} & {*sys.modules}"
    program = f"import sys, {', '.join(modules)}; print({unwanted})"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "set()", result.stderr
