"""`hfmds status` and `hfmds drain`: commands about the coordinator itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from hfmds.cli.connections import DEFAULT_COORDINATOR, CoordinatorOption, ask_coordinator
from hfmds.cli.json_values import to_json
from hfmds.cli.tables.operations import status_table
from hfmds.cli.terminal import output


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Show the state of the coordinator: its runs, its devices, and whether it is drained."""
    coordinator_status = ask_coordinator(coordinator, lambda client: client.status())
    if as_json:
        typer.echo(to_json(coordinator_status))
    else:
        output().print(status_table(coordinator_status, datetime.now(UTC)))


def drain(
    off: Annotated[bool, typer.Option("--off", help="Hand out work again.")] = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Stop handing out work. The coordinator still takes the results of open tasks.

    The drain lasts until --off ends it, also over restarts of the coordinator.
    """
    now = ask_coordinator(coordinator, lambda client: client.set_drain(not off))
    if now.on:
        state = "drained; hfmds status shows open tasks; end it with: hfmds drain --off"
    else:
        state = "not drained and hands out work"
    output().print(f"the coordinator is {state}", markup=False, soft_wrap=True)
