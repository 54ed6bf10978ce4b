"""The `hfmds` command, put together from its parts."""

from __future__ import annotations

from typing import Annotated

import typer

from hfmds.cli import (
    audit_commands,
    backup_commands,
    database_commands,
    demo_command,
    experiment_commands,
    fleet_commands,
    model_commands,
    oversight_commands,
    pki_commands,
    retention_commands,
    run_commands,
    snapshot_commands,
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from hfmds.service.program_metrics import software_version  # no other command needs it

        typer.echo(f"hfmds {software_version()}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # or each line of a docstring would be a line of its own
)


@app.callback()
def hfmds(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Tell the version."),
    ] = False,
) -> None:
    """Federated learning for fleets of devices whose data are not alike."""


app.command()(demo_command.demo)
app.add_typer(run_commands.app, name="run")
app.add_typer(model_commands.app, name="model")
app.command()(fleet_commands.devices)
app.command()(oversight_commands.status)
app.command()(oversight_commands.drain)
app.add_typer(audit_commands.app, name="audit")
snapshot_commands.app.command()(retention_commands.collect)
snapshot_commands.app.command()(retention_commands.release)
snapshot_commands.app.command()(retention_commands.withdraw)
app.add_typer(snapshot_commands.app, name="snapshots")
app.add_typer(database_commands.app, name="database")
app.command()(backup_commands.backup)
app.command()(backup_commands.restore)
app.add_typer(pki_commands.app, name="pki")
app.add_typer(experiment_commands.app, name="experiment")
