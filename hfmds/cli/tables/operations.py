"""Tables of event logs, funnels and the state of the coordinator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from rich import box
from rich.table import Table

from hfmds.cli.tables.layout import add_row, new_table
from hfmds.cli.text import NOTHING, ago
from hfmds.domain.administration.operations import STEPS, Funnel, Status
from hfmds.event_chain import Event

_BAR_WIDTH = 30
_SHOWN_CHARACTERS = 12  # of a hash in the column of details
_HASH_CHARACTERS = 64


def events_table(run_uid: str, events: Sequence[Event]) -> Table:
    """Return one row for each event."""
    table = new_table(f"events of {run_uid}")
    table.add_column("#", justify="right", no_wrap=True)
    for name in ("time", "event"):
        table.add_column(name, no_wrap=True)
    table.add_column("details", overflow="fold")
    for event in events:
        at = f"{event.at:%Y-%m-%d %H:%M:%S}"
        add_row(table, str(event.sequence), at, event.kind, _details(event.details))
    return table


def funnel_table(funnel: Funnel) -> Table:
    """Return how far the tasks of one kind came, from the first stage to the last."""
    table = Table(
        title=funnel.kind,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_header=False,
        pad_edge=False,
    )
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    widest = max(getattr(funnel, step) for step in STEPS)
    for step in STEPS:
        count = getattr(funnel, step)
        add_row(table, step, str(count), "█" * round(_BAR_WIDTH * count / widest) if widest else "")
    others = (("pending", funnel.pending), ("not needed", funnel.unneeded))
    for name, count in others:
        if count:
            add_row(table, name, str(count), "")
    for name, causes in (
        ("late", funnel.late),
        ("failed", funnel.failed),
        ("refused", funnel.refused),
    ):
        if causes:
            add_row(table, name, str(sum(causes.values())), _counts(causes))
    return table


def status_table(status: Status, now: datetime) -> Table:
    """Return the state of the coordinator as names and values."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=0)
    table.add_column(style="dim", no_wrap=True, min_width=14)
    table.add_column(overflow="fold")
    drain = status.drain
    drained = "no"
    if drain.on:
        drained = f"yes, by {drain.by}" + (f", {ago(drain.since, now)}" if drain.since else "")
    add_row(table, "drained", drained)
    add_row(table, "runs", _counts(status.runs))
    add_row(table, "devices", _counts(status.devices))
    add_row(table, "tasks out", _counts(status.tasks))
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or NOTHING


def _details(text: str) -> str:
    """Return the details in one line with shortened hashes; the log as JSON has them in full."""
    try:
        details = json.loads(text)
    except ValueError:  # a manipulated log appears as it is
        return text
    if not isinstance(details, dict):
        return text
    return ", ".join(f"{name} {_short(value)}" for name, value in details.items())


def _short(value: object) -> str:
    text = str(value)
    return text[:_SHOWN_CHARACTERS] if len(text) == _HASH_CHARACTERS else text or NOTHING
