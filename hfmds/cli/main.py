"""The entry point of the console script: runs a command and prints its errors."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Sequence

from hfmds.errors import HfmdsError

_INTERRUPTED = 130  # what shells expect after Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. An HfmdsError is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # a locale that lacks a character prints a question mark
            stream.reconfigure(errors="replace")
    try:
        from hfmds.cli.app import app  # slow to import; Ctrl-C must not show a traceback

        app(list(arguments) if arguments is not None else None, prog_name="hfmds")
    except HfmdsError as error:
        from hfmds.cli.terminal import complain

        complain(str(error))
        return error.exit_code
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        from hfmds.cli.terminal import complain

        complain("cannot write the output, the disk is full: make room and try again")
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemExit as end:  # typer ends every command this way
        return end.code if isinstance(end.code, int) else 1
    return 0
