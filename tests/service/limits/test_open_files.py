"""A server raises its limit of open files, or warns."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from hfmds.service.limits.open_files import open_files_allowed
from hfmds.service.process.process import run
from hfmds.service.process.settings import ServerSettings

async def serve(settings, stop):
    print(open_files_allowed())

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048))
sys.exit(run("coordinator", ServerSettings, serve))
"""


@pytest.mark.parametrize(("connections", "warns"), [(1461, False), (1462, True)])
def test_a_server_raises_its_limit_and_says_if_that_is_not_enough(
    connections: int, warns: bool
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--insecure", f"--max-connections={connections}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout == "2048\n", ended.stderr
    warning = "coordinator may open only 2048 files, so it takes 1461 connections"
    assert (warning in ended.stderr) == warns
