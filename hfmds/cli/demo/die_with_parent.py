"""Runs a command that dies with its parent process: `die_with_parent.py PARENT_PID COMMAND...`.

Linux only: elsewhere the command is run as it is. A separate program, because a hook between fork
and exec is not safe once the parent has threads, and gRPC's parent always has. Started by path with
`python -I -S`, so it must import nothing but the standard library.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>; survives exec


def main(arguments: list[str]) -> None:
    """Ask the kernel to kill this process with its parent, then become the command."""
    parent, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before
            sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 (becoming another program is the purpose)


if __name__ == "__main__":
    main(sys.argv[1:])
