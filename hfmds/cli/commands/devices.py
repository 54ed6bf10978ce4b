"""`hfmds devices`: the fleet."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from hfmds.cli.connections import DEFAULT_COORDINATOR, CoordinatorOption, ask_coordinator
from hfmds.cli.json_values import to_json
from hfmds.cli.tables.runs import devices_table, failures_of, twins_of
from hfmds.cli.terminal import output

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def devices(as_json: AsJson = False, coordinator: CoordinatorOption = DEFAULT_COORDINATOR) -> None:
    """List the devices the coordinator has seen."""
    found = ask_coordinator(coordinator, lambda client: client.list_devices())
    if as_json:
        typer.echo(to_json(found))
    elif found:
        console = output()
        console.print(devices_table(found, datetime.now(UTC), console.width))
        for line in twins_of(found):
            console.print(line, soft_wrap=True)
        if failures := list(failures_of(found)):
            console.print("why they last gave a task up:", *failures, sep="\n", soft_wrap=True)
    else:
        output().print("no devices yet; start one with: hfmds-edge-client")
