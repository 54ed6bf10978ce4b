from __future__ import annotations

import os
import subprocess
import sys

import pytest

TORCH_FREE = [
    "aggregation.aggregation",
    "aggregation.compression",
    "local_work",
    "evaluation",
    "federation",
    "finite_checks",
    "leakage.measurement",
    "methods.method_server",
    "models.weight_groups",
    "pixels",
    "pool",
    "prototypes",
    "sampling",
    "seeds",
    "synthesis",
    "training",
]


def test_what_the_store_and_torch_free_devices_import_needs_no_torch():
    modules = ["hfmds.data.sources", "hfmds.data.splits", "hfmds.data.statistics"]
    modules += [f"hfmds.algorithm.{name}" for name in TORCH_FREE]
    unwanted = "{'torch', 'sklearn', 'grpc'} & {*sys.modules}"
    program = f"import sys, {', '.join(modules)}; print({unwanted})"
    assert _told_by(program) == "set()"


@pytest.mark.parametrize("program", ["coordinator", "synthesis_store"])
def test_programs_load_torch_and_alembic_when_they_need_them(program: str):
    unwanted = "{'torch', 'alembic'} & {*sys.modules}"
    told = _told_by(f"import sys, {program}.__main__; print({unwanted})")
    assert told == "set()"


def test_the_coordinator_limits_the_threads_of_a_torch_that_comes_later():
    told = _told_by(
        "from coordinator.runs.evaluation import Learning; Learning(threads=1).load(); "
        "import torch; print(torch.get_num_threads())"
    )
    assert told == "1"


def _told_by(program: str) -> str:
    environment = {name: value for name, value in os.environ.items() if "THREADS" not in name}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()
