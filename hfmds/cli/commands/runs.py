"""`hfmds run ...`: create, show and control runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from hfmds.cli.commands.models import find_version
from hfmds.cli.connections import (
    DEFAULT_COORDINATOR,
    CoordinatorOption,
    admin_client,
    ask_coordinator,
)
from hfmds.cli.interrupts import run_interruptible
from hfmds.cli.json_values import to_json
from hfmds.cli.progress_display import display_for
from hfmds.cli.recipe.file import spec_from
from hfmds.cli.recipe.keys import RECIPE_OPTIONS, keys_of
from hfmds.cli.tables.operations import funnel_table
from hfmds.cli.tables.runs import keys_table, rounds_table, run_table, runs_table
from hfmds.cli.terminal import complain, output
from hfmds.cli.watch_run import FollowedRun, follow
from hfmds.domain.runs import Round, Run
from hfmds.service.process.options import with_options
from hfmds.wire.clients.admin_client import AdminClient

app = typer.Typer(help="Create, show and control runs.", no_args_is_help=True)

RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.command()
@with_options(RECIPE_OPTIONS)
def create(
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Recipe in TOML. Options win over it."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Value of any recipe key (hfmds run keys), such as fedprox.mu=0.1. The option may "
            "be repeated.",
        ),
    ] = None,
    run_id: Annotated[
        str, typer.Option(help="Id of the run; default: the coordinator chooses one.")
    ] = "",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="RUN[:ROUND|:best]",
            help="Start from the model of another run instead of fresh weights.",
        ),
    ] = "",
    as_json: AsJson = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
    **recipe_options: object,
) -> None:
    """Create a run. It starts as soon as enough devices are present.

    The defaults are the paper's. A second call with the same id and recipe changes nothing.

    Set the options of methods other than hfmds with --set, or in a table of the recipe.
    """
    spec = spec_from(recipe, recipe_options, settings or ())

    async def create_run(client: AdminClient) -> Run:
        version = await find_version(client, start) if start else None
        return await client.create_run(replace(spec, start_from=version), run_id)

    run = ask_coordinator(coordinator, create_run)
    if as_json:
        typer.echo(to_json(run))
    else:
        _print_state(run, f"created; follow it with: hfmds run watch {run.run_id}")


@app.command("list")
def list_runs(
    as_json: AsJson = False, coordinator: CoordinatorOption = DEFAULT_COORDINATOR
) -> None:
    """Show all runs, newest first."""
    runs, unreadable = ask_coordinator(coordinator, lambda client: client.list_runs())
    if as_json:
        typer.echo(to_json(runs))
    elif runs:
        output().print(runs_table(runs))
    elif not unreadable:
        output().print("no runs yet; create one with: hfmds run create")
    for run in unreadable:
        complain(f"run {run.run_id} cannot be shown: {run.problem}; upgrade this hfmds")


@app.command()
def show(
    run_id: RunId, as_json: AsJson = False, coordinator: CoordinatorOption = DEFAULT_COORDINATOR
) -> None:
    """Show a run and all its completed rounds."""
    run, rounds = ask_coordinator(coordinator, lambda client: _ask_all(client, run_id))
    if as_json:
        typer.echo(to_json({"run": run, "rounds": rounds}))
        return
    console = output()
    console.print(run_table(run, datetime.now(UTC)))
    if rounds:
        console.print(rounds_table(rounds))


@app.command()
def watch(run_id: RunId, coordinator: CoordinatorOption = DEFAULT_COORDINATOR) -> None:
    """Follow a run until it ends, across pauses and restarts of the coordinator.

    Exit code 0 when it completes, 1 when it is cancelled.
    """
    run_interruptible(_watch(run_id, coordinator))


@app.command()
def pause(run_id: RunId, coordinator: CoordinatorOption = DEFAULT_COORDINATOR) -> None:
    """Pause a run: the coordinator hands out none of its work until you resume it."""
    _print_state(ask_coordinator(coordinator, lambda client: client.pause_run(run_id)))


@app.command()
def resume(run_id: RunId, coordinator: CoordinatorOption = DEFAULT_COORDINATOR) -> None:
    """Resume a paused run."""
    _print_state(ask_coordinator(coordinator, lambda client: client.resume_run(run_id)))


@app.command()
def delete(
    run_id: RunId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Delete a run that has ended, with its rounds and models. Its event log stays."""
    if not yes:
        typer.confirm(f"delete run {run_id} with all its models?", abort=True)
    ask_coordinator(coordinator, lambda client: client.delete_run(run_id))
    output().print(
        f"run {run_id}: deleted; its log stays: hfmds audit show {run_id}",
        markup=False,
        soft_wrap=True,
    )


@app.command()
def keys(
    table: Annotated[
        str, typer.Argument(metavar="[TABLE]", help="Only the keys of this table, such as pool.")
    ] = "",
) -> None:
    """List the keys of a recipe, for a file and for --set, with limits and defaults."""
    if recipe_keys := keys_of(table):
        output().print(keys_table(recipe_keys))
    else:
        output().print(f"the table {table} has no keys", markup=False)


@app.command()
def funnel(
    run_id: Annotated[
        str, typer.Argument(metavar="[RUN]", help="Id of the run; default: all runs.")
    ] = "",
    round_number: Annotated[
        int, typer.Option("--round", min=0, help="Only this round; 0: all.")
    ] = 0,
    as_json: AsJson = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Show how far devices get with their tasks, and why some tasks are lost."""
    funnels = ask_coordinator(coordinator, lambda client: client.funnels(run_id, round_number))
    if as_json:
        typer.echo(to_json(funnels))
        return
    for run_funnel in funnels:
        output().print(funnel_table(run_funnel))
    if not funnels:
        output().print("no device has received a task yet")


@app.command()
def cancel(run_id: RunId, coordinator: CoordinatorOption = DEFAULT_COORDINATOR) -> None:
    """Cancel a run for good. Its completed rounds and their models stay."""
    _print_state(ask_coordinator(coordinator, lambda client: client.cancel_run(run_id)))


async def _ask_all(client: AdminClient, run_id: str) -> tuple[Run, tuple[Round, ...]]:
    """Return the run and its rounds. In this order no round of an ended run is missing."""
    return await client.get_run(run_id), await client.list_rounds(run_id)


async def _watch(run_id: str, coordinator: str) -> None:
    async with admin_client(coordinator) as client:
        run, rounds = await _ask_all(client, run_id)
        followed = FollowedRun(run_id, run, list(rounds))
        with display_for(output(), [followed]) as display:
            display.changed(followed, rounds)
            async for new_rounds in follow(client, followed):
                display.changed(followed, new_rounds)
    followed.require_completed()


def _print_state(run: Run, what: str = "") -> None:
    output().print(f"run {run.run_id}: {what or run.state.value}", markup=False, soft_wrap=True)
