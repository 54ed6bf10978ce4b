"""The `hfmds` command: its groups of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from hfmds.cli.commands import (
    audit,
    backup,
    data_removal,
    database,
    datasets,
    devices,
    models,
    operations,
    pki,
    runs,
    snapshots,
)
from hfmds.cli.demo import command
from hfmds.cli.experiments import commands


def _show_version(wanted: bool) -> None:
    if wanted:
        # Imported late: no other command needs it.
        from hfmds.service.monitoring.program_metrics import software_version

        typer.echo(f"hfmds {software_version()}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a docstring into paragraphs
)


@app.callback()
def hfmds(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Federated learning for fleets of devices whose data are not alike."""


app.command()(command.demo)
app.add_typer(runs.app, name="run")
app.add_typer(models.app, name="model")
app.command()(devices.devices)
app.command()(operations.status)
app.command()(operations.drain)
app.add_typer(audit.app, name="audit")
snapshots.app.command()(data_removal.collect)
snapshots.app.command()(data_removal.release)
snapshots.app.command()(data_removal.withdraw)
app.add_typer(snapshots.app, name="snapshots")
app.add_typer(datasets.app, name="data")
app.add_typer(database.app, name="database")
app.command()(backup.backup)
app.command()(backup.restore)
app.add_typer(pki.app, name="pki")
app.add_typer(commands.app, name="experiment")
