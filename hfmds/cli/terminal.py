"""Where the command line writes: results to stdout, complaints to stderr."""

from __future__ import annotations

from rich.console import Console

_PIPE_COLUMNS = 120  # tables in files and pipes need not fit a terminal


def output() -> Console:
    """The console of results. Without a terminal: plain text, no control codes."""
    console = Console(highlight=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, width=max(console.width, _PIPE_COLUMNS))


def complain(message: str) -> None:
    """Say on stderr what went wrong."""
    console = Console(stderr=True, highlight=False)
    console.print(f"hfmds: {message}", style="red", markup=False, soft_wrap=True)
