"""`hfmds status` and `hfmds drain`: the coordinator as a whole."""

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
    """Show how the coordinator is: its runs, its devices, and whether it is drained."""
    found = ask_coordinator(coordinator, lambda client: client.status())
    if as_json:
        typer.echo(to_json(found))
    else:
        output().print(status_table(found, datetime.now(UTC)))


def drain(
    off: Annotated[bool, typer.Option("--off", help="End it: hand out work again.")] = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Hand out no new work of any run, and still take what devices are working on.

    It lasts until it is ended with --off, also over restarts of the coordinator.
    """
    now = ask_coordinator(coordinator, lambda client: client.set_drain(not off))
    if now.on:
        say = "drained; hfmds status shows what devices still have; end it with: hfmds drain --off"
    else:
        say = "not drained; work is handed out"
    output().print(f"the coordinator is {say}", markup=False, soft_wrap=True)
