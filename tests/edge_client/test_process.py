"""`python -m edge_client` from outside: exit codes, messages and signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hfmds.data.packed import save_npz
from hfmds.domain.learning import LabelledImages
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def no_server() -> Iterator[str]:
    """Reserve an address that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "shard.npz"
    save_npz(path, LabelledImages(np.zeros((2, 1, 2, 2), np.uint8), np.array([0, 1])))
    return path


def start(tmp_path: Path, **settings: str) -> subprocess.Popen[str]:
    settings = {
        "state_dir": str(tmp_path / "state"),
        "metrics_listen": "127.0.0.1:0",
        "address_file": str(tmp_path / "address.json"),
        **settings,
    }
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HFMDS_")}
    environment |= {f"HFMDS_{name.upper()}": value for name, value in settings.items()}
    return subprocess.Popen(
        [sys.executable, "-m", "edge_client"], env=environment, stderr=subprocess.PIPE, text=True
    )


def exit_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr


def test_missing_data_setting_exits_2(tmp_path: Path) -> None:
    code, stderr = exit_of(start(tmp_path))
    assert code == 2
    assert "HFMDS_DATA (--data) is not set" in stderr


def test_empty_image_folder_exits_2_before_any_call(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    code, stderr = exit_of(start(tmp_path, data=str(tmp_path / "images")))
    assert code == 2
    assert f"data folder {tmp_path / 'images'} has no class folders" in stderr
    assert "Traceback" not in stderr
    assert "HFMDS_COORDINATOR" not in stderr


def test_coordinator_away_is_one_line_and_sigterm_exits_0(
    tmp_path: Path, shard: Path, no_server: str
) -> None:
    process = start(
        tmp_path, data=str(shard), coordinator=no_server, store=no_server, retry_max_seconds="0.1"
    )
    try:
        address_file = tmp_path / "address.json"
        wait_until(lambda: address_file.exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        metrics = f"http://{json.loads(address_file.read_text())['metrics']}"
        wait_until(lambda: "is unavailable" in _unready_reason(metrics))
        assert no_server in _unready_reason(metrics)
        process.send_signal(signal.SIGTERM)
        code, stderr = exit_of(process)
    finally:
        process.kill()
    assert code == 0
    assert "Traceback" not in stderr
    assert stderr.count("is unavailable") == 1
    assert f"coordinator at {no_server}" in stderr
    assert "HFMDS_COORDINATOR" in stderr
    assert not address_file.exists()


def _unready_reason(metrics: str) -> str:
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(f"{metrics}/readyz", timeout=30)
    assert answer.value.code == 503
    return answer.value.read().decode()
