"""Where the console script begins: runs the command, and makes errors readable."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Sequence

from hfmds.errors import HfmdsError

_INTERRUPTED = 130  # what shells expect after Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code. An HfmdsError is a clear line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale without bars gets question marks
            stream.reconfigure(errors="replace")
    try:
        from hfmds.cli.app import app  # takes a while, in which Ctrl-C must not show a traceback

        app(list(arguments) if arguments is not None else None, prog_name="hfmds")
    except HfmdsError as error:
        from hfmds.cli.terminal import complain

        complain(str(error))
        return error.exit_code
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        from hfmds.cli.terminal import complain

        complain("what was to be written has no room: the disk is full; make room and try again")
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemExit as end:  # how typer ends, also when all is well
        return end.code if isinstance(end.code, int) else 1
    return 0
