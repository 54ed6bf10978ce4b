"""`hfmds audit ...`: what happened in a run, and whether its log is what was written."""

from __future__ import annotations

from typing import Annotated

import typer

from hfmds.cli.console import complain, output
from hfmds.cli.oversight_tables import events_table
from hfmds.cli.peers import DEFAULT_COORDINATOR, CoordinatorOption, ask_coordinator
from hfmds.cli.records import to_json
from hfmds.event_chain import flaw

app = typer.Typer(
    help="Read and check the event logs of runs, also of deleted ones.", no_args_is_help=True
)

OfRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Id of the run; of several that had the id, the last, or which one by its unique id.",
    ),
]


@app.command()
def show(
    run: OfRun,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="Only events of this kind, such as task-accepted, or whose kind begins so, such "
            "as task; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Show what happened in a run, in order."""
    run_uid, events = ask_coordinator(coordinator, lambda client: client.list_events(run))
    wanted = [
        event
        for event in events
        if not kinds or any(event.kind == k or event.kind.startswith(f"{k}-") for k in kinds)
    ]
    if as_json:
        typer.echo(to_json(wanted))
    elif wanted:
        output().print(events_table(run_uid, wanted))
    else:
        output().print(f"no such events; the log of {run_uid} has {len(events)} others")


@app.command()
def verify(
    run: OfRun,
    head: Annotated[
        str,
        typer.Option(
            metavar="HASH",
            help="The head that an earlier verify printed: it must still be in the log, so "
            "nothing up to it was cut off or written anew.",
        ),
    ] = "",
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Check that a run's log is what was written: nothing changed, taken out or moved.

    Every hash is computed anew here, from the events as the coordinator sends them. Note the head
    that is printed where the coordinator's operator cannot reach it. Exit code 1 if the log is
    broken.
    """
    run_uid, events = ask_coordinator(coordinator, lambda client: client.list_events(run))
    broken = flaw(events, run_uid, head)
    if broken:
        complain(f"the log of {run_uid} is broken: {broken}")
        raise typer.Exit(1)
    known = ", and has the noted head" if head else ""
    output().print(
        f"the log of {run_uid} is sound: {len(events)} events{known}\nhead {events[-1].hash}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
