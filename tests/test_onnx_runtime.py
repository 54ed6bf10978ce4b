"""onnxruntime sends no telemetry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Who loads onnxruntime, in its own process, as it is not unloaded; with a home that shows it.
LOADERS = ("edge_client.engines.graphs", "edge_client.engines.onnx_engine")


@pytest.mark.parametrize("module", LOADERS)
def test_no_name_of_the_machine_is_made(module: str, tmp_path: Path) -> None:
    places = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / ".cache")}
    inherited = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    loaded = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; sys.exit('onnxruntime' not in sys.modules)"],
        env={**inherited, **places},
        check=False,
    )
    assert loaded.returncode == 0
    assert list(tmp_path.rglob("*")) == []
