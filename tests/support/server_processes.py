"""What real servers under test have in common: free ports, and waiting until they answer."""

from __future__ import annotations

import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

START_SECONDS = 60.0
_TOLD_CHARACTERS = 4_000  # of a log, when a server does not come
_STARTS = 4
_FIRST_PORT = 15_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_address() -> str:
    """An address for a server that is stopped and started again there."""
    return f"127.0.0.1:{free_ports(1)[0]}"


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on, and that stay free until a server has them.

    Not those that the kernel hands out: it would give one to a caller, of whatever process, also
    before a server has it or between a server's end and its next start.
    """
    with ExitStack() as held:  # all at once, so that none is given twice
        return [_held_port(held) for _ in range(count)]


def _held_port(held: ExitStack) -> int:
    first_of_the_kernel = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    count = max(first_of_the_kernel - _FIRST_PORT, 10_000)
    while True:
        port = _FIRST_PORT + secrets.randbelow(count)  # not by `random`, whose seed tests may set
        each = held.enter_context(socket.socket())
        with suppress(OSError):  # somebody has it
            each.bind(("127.0.0.1", port))
            return port


class ServerEnded(AssertionError):
    """A server ended before it answered."""


def wait_until(answers: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a server that was started; its log tells why it did not come."""
    deadline = time.monotonic() + START_SECONDS
    while not answers():
        if process.poll() is not None:
            raise ServerEnded(f"the server ended with code {process.returncode}:\n{_end_of(log)}")
        assert time.monotonic() < deadline, f"the server does not answer:\n{_end_of(log)}"
        time.sleep(0.02)


def start_persistently(start: Callable[[], None]) -> None:
    """Start a server, some more times if it ends at once: what it is killed with may linger."""
    for _ in range(_STARTS - 1):
        with suppress(ServerEnded):
            start()
            return
        time.sleep(0.2)
    start()


def _end_of(log: Path) -> str:
    """What was told last: a log may hold all that earlier starts said."""
    return log.read_text()[-_TOLD_CHARACTERS:]
