"""The common style of all tables: empty tables, rows, states in colour."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from hfmds.domain.devices import DeviceState
from hfmds.domain.runs import RunState

_STATE_STYLES = {
    RunState.RUNNING: "cyan",
    RunState.PAUSED: "yellow",
    RunState.COMPLETED: "green",
    RunState.CANCELLED: "yellow",
    RunState.DELETING: "yellow",
    DeviceState.AVAILABLE: "green",
    DeviceState.WORKING: "cyan",
    DeviceState.AWAY: "yellow",
}


def new_table(title: str = "") -> Table:
    """Return an empty table in the common style."""
    return Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )


def add_row(table: Table, *cells: str | Text, style: str = "") -> None:
    """Add a row of plain text: `[x]` in an id or a reason is no markup."""
    table.add_row(*(Text(c) if isinstance(c, str) else c for c in cells), style=style)


def facts_table(title: str) -> Table:
    """Return an empty table of names and values."""
    table = Table(
        title=title, title_justify="left", box=None, show_header=False, pad_edge=False, padding=0
    )
    table.add_column(style="dim", no_wrap=True, min_width=14)
    table.add_column(overflow="fold")
    return table


def state_text(state: RunState | DeviceState) -> Text:
    """Return the state in its colour."""
    return Text(state.value, _STATE_STYLES[state])
