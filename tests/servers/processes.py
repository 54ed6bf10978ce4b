"""What real servers under test have in common: free ports, and waiting until they answer."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

START_SECONDS = 60.0


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with ExitStack() as held:  # all at once, so that none is given twice
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_until(answers: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a server that was started; its log tells why it did not come."""
    deadline = time.monotonic() + START_SECONDS
    while not answers():
        assert process.poll() is None, f"the server ended:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"the server does not answer:\n{log.read_text()}"
        time.sleep(0.02)
