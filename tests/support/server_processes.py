"""Free ports for real servers, and waiting until such a server answers."""

from __future__ import annotations

import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.support.waiting import wait_until

START_SECONDS = 60.0
_LOG_CHARACTERS = 4_000  # in the error of a server that does not start
_STARTS = 4
_FIRST_PORT = 15_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_address() -> str:
    """An address for a server that is stopped and started again there."""
    return f"127.0.0.1:{free_ports(1)[0]}"


def free_ports(count: int) -> list[int]:
    """Return ports on which no process listens.

    They lie outside of the range that the kernel hands out. So no other process gets one of them
    before the server starts, or between its end and its next start.
    """
    with ExitStack() as held:  # all at once, so that no port comes twice
        return [_held_port(held) for _ in range(count)]


def _held_port(held: ExitStack) -> int:
    first_of_the_kernel = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    count = max(first_of_the_kernel - _FIRST_PORT, 10_000)
    while True:
        port = _FIRST_PORT + secrets.randbelow(count)  # tests may set the seed of `random`
        candidate = held.enter_context(socket.socket())
        with suppress(OSError):  # another process has the port
            candidate.bind(("127.0.0.1", port))
            return port


class ServerEnded(AssertionError):
    """A server ended before it answered."""


def wait_for_server(
    answers: Callable[[], bool], process: subprocess.Popen[bytes], log: Path
) -> None:
    """Wait until a started server answers. An error quotes the end of its log."""
    try:
        wait_until(lambda: process.poll() is not None or answers(), START_SECONDS)
    except TimeoutError as error:
        error.add_note(_end_of(log))
        raise
    if process.returncode is not None:
        raise ServerEnded(f"the server ended with code {process.returncode}:\n{_end_of(log)}")


def start_persistently(start: Callable[[], None]) -> None:
    """Start a server, again if it ends at once: a killed server may leave locks for a moment."""
    for _ in range(_STARTS - 1):
        with suppress(ServerEnded):
            start()
            return
        time.sleep(0.2)
    start()


def _end_of(log: Path) -> str:
    """The end of a log, which may also hold earlier starts."""
    return log.read_text()[-_LOG_CHARACTERS:]
