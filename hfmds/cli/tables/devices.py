"""Tables of the devices of a fleet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from hfmds.cli.tables.layout import add_row, new_table, state_text
from hfmds.cli.text import NOTHING, ago
from hfmds.domain.devices import Device


def devices_table(devices: Sequence[Device], now: datetime, width: int) -> Table:
    """Return one row for each device, with the columns that fit into `width` characters."""
    columns = _device_columns(devices, now)
    left_out = []
    for name in _DISPENSABLE:
        if (
            sum(max(cell.cell_len for cell in (Text(n), *c)) + 2 for n, c in columns.items())
            > width
        ):
            left_out += [name] if columns.pop(name, None) else []
    table = new_table()
    table.caption_justify = "left"
    if left_out:
        table.caption = f"no room for {', '.join(left_out)}; --json has them"
    for name in columns:
        if name in ("device", "labels"):
            table.add_column(name, overflow="fold")
        else:
            right = name in ("samples", "accepted", "failed")
            table.add_column(name, no_wrap=True, justify="right" if right else "left")
    for row in zip(*columns.values(), strict=True):
        add_row(table, *row)
    return table


_DISPENSABLE = ("task", "engine", "version", "labels", "stage", "samples")
"""Columns of devices that a narrow table leaves out, in this order."""


def _device_columns(devices: Sequence[Device], now: datetime) -> dict[str, list[Text]]:
    columns: dict[str, Sequence[str | Text]] = {
        "device": [device.device_id for device in devices],
        "state": [state_text(device.state) for device in devices],
        "samples": [str(device.profile.samples) for device in devices],
        "accepted": [str(device.accepted_tasks) for device in devices],
        "failed": [str(device.failed_tasks) for device in devices],
        "engine": [device.profile.engine for device in devices],
        "version": [device.profile.software_version for device in devices],
        "last seen": [ago(device.last_seen_at, now) for device in devices],
        "task": [(device.task_id or NOTHING)[:12] for device in devices],
    }
    if any(device.stage for device in devices):
        stages = [device.stage.name.lower() if device.stage else NOTHING for device in devices]
        columns["stage"] = stages
    if any(device.profile.labels for device in devices):
        columns["labels"] = [", ".join(d.profile.labels) or NOTHING for d in devices]
    return {
        name: [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        for name, cells in columns.items()
    }


def twins_of(devices: Sequence[Device]) -> Iterator[Text]:
    """Yield a warning for each id under which several devices run."""
    for device in devices:
        if device.has_twin:
            warning = "several devices run with this id; give each its own state folder"
            yield Text(f"{device.device_id}: {warning}", "red")


def failures_of(devices: Sequence[Device]) -> Iterator[Text]:
    """Yield why devices gave up their last task, one line for each."""
    for device in devices:
        if device.last_failure:
            yield Text(f"{device.device_id}: {device.last_failure}", "yellow")
