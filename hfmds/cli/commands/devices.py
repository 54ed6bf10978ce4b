"""`hfmds devices`: the devices of the fleet."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from hfmds.cli.connections import DEFAULT_COORDINATOR, CoordinatorOption, ask_coordinator
from hfmds.cli.json_values import to_json
from hfmds.cli.tables.devices import devices_table, failures_of, twins_of
from hfmds.cli.terminal import output

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def devices(as_json: AsJson = False, coordinator: CoordinatorOption = DEFAULT_COORDINATOR) -> None:
    """Show the devices that the coordinator has seen."""
    fleet = ask_coordinator(coordinator, lambda client: client.list_devices())
    if as_json:
        typer.echo(to_json(fleet))
    elif fleet:
        console = output()
        console.print(devices_table(fleet, datetime.now(UTC), console.width))
        for line in twins_of(fleet):
            console.print(line, soft_wrap=True)
        if failures := list(failures_of(fleet)):
            console.print("why they gave up their last task:", *failures, sep="\n", soft_wrap=True)
    else:
        output().print("no devices yet; start one with: hfmds-edge-client")
