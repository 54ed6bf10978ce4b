"""The outputs of the command line: results on stdout, errors on stderr."""

from __future__ import annotations

from rich.console import Console

_PIPE_COLUMNS = 120  # width of tables in files and pipes


def output() -> Console:
    """Return the console for results. Without a terminal it prints plain text."""
    console = Console(highlight=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, width=max(console.width, _PIPE_COLUMNS))


def complain(message: str) -> None:
    """Print an error on stderr."""
    console = Console(stderr=True, highlight=False)
    console.print(f"hfmds: {message}", style="red", markup=False, soft_wrap=True)
