"""The `hfmds` command, put together from its parts."""

from __future__ import annotations

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

app = typer.Typer(
    help="Federated learning for fleets of devices whose data are not alike.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
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
