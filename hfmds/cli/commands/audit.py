"""`hfmds audit ...`: read and check the event logs of runs, of the store and of the fleet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from hfmds.cli.connections import (
    DEFAULT_COORDINATOR,
    DEFAULT_STORE,
    CoordinatorOption,
    StoreOption,
    ask_coordinator,
    ask_store,
)
from hfmds.cli.json_values import to_json
from hfmds.cli.tables.operations import events_table
from hfmds.cli.terminal import complain, output
from hfmds.cli.text import counted
from hfmds.errors import ConfigurationError
from hfmds.event_chain import Event, flaw

app = typer.Typer(
    help="Read and check the event logs of runs (also deleted ones), the store and the fleet.",
    no_args_is_help=True,
)

OfRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Id of the run. If several runs had it: the last, or the run of this unique id.",
    ),
]


Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="Only events of this kind, such as task-accepted, or of kinds that begin with it, "
        "such as task. The option may be repeated.",
    ),
]
_HASH = re.compile("[0-9a-f]{64}")
_FLEET = ""  # in place of a run's id

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Head = Annotated[
    str,
    typer.Option(
        metavar="HASH",
        help="Head that an earlier verify printed. It must still be in the log: then no "
        "event up to it was cut off or rewritten.",
    ),
]


@app.command()
def show(
    run: OfRun,
    kinds: Kinds = None,
    as_json: AsJson = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Show the events of a run in order."""
    run_uid, events = ask_coordinator(coordinator, lambda client: client.list_events(run))
    _show(run_uid, events, kinds, as_json=as_json)


@app.command()
def show_store(
    kinds: Kinds = None, as_json: AsJson = False, store: StoreOption = DEFAULT_STORE
) -> None:
    """Show the events of pools, snapshots and contributions in the synthesis store in order."""
    log_id, events = ask_store(store, lambda client: client.list_events())
    _show(log_id, events, kinds, as_json=as_json)


@app.command()
def show_fleet(
    kinds: Kinds = None,
    as_json: AsJson = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Show the events of tokens, certificates and devices in order."""
    log_id, events = ask_coordinator(coordinator, lambda client: client.list_events(_FLEET))
    _show(log_id, events, kinds, as_json=as_json)


@app.command()
def verify(
    run: OfRun, head: Head = "", coordinator: CoordinatorOption = DEFAULT_COORDINATOR
) -> None:
    """Check the log of a run: that no event was changed, removed or moved.

    The command computes every hash again from the events that the coordinator sends. Keep the
    printed head where the coordinator's operator cannot reach it. Exit code 1: the log is broken.
    """
    run_uid, events = ask_coordinator(coordinator, lambda client: client.list_events(run))
    _verify(run_uid, events, head)


@app.command()
def verify_store(head: Head = "", store: StoreOption = DEFAULT_STORE) -> None:
    """Check the log of the synthesis store, as `verify` checks that of a run."""
    log_id, events = ask_store(store, lambda client: client.list_events())
    _verify(log_id, events, head)


@app.command()
def verify_fleet(head: Head = "", coordinator: CoordinatorOption = DEFAULT_COORDINATOR) -> None:
    """Check the log of the fleet, as `verify` checks that of a run."""
    log_id, events = ask_coordinator(coordinator, lambda client: client.list_events(_FLEET))
    _verify(log_id, events, head)


def _show(
    log_id: str, events: Sequence[Event], kinds: Sequence[str] | None, *, as_json: bool
) -> None:
    wanted = [
        event
        for event in events
        if not kinds or any(event.kind == k or event.kind.startswith(f"{k}-") for k in kinds)
    ]
    if as_json:
        typer.echo(to_json(wanted))
    elif wanted:
        output().print(events_table(log_id, wanted))
    elif events:
        output().print(f"no such events; the log of {log_id} has {counted(len(events), 'other')}")
    else:
        output().print(f"no events yet in the log of {log_id}")


def _verify(log_id: str, events: Sequence[Event], head: str) -> None:
    if head and not _HASH.fullmatch(head):  # part of a hash would accept a log that was cut off
        raise ConfigurationError(
            f"--head is {head!r}; it must be a head of 64 hexadecimal digits, as verify prints"
        )
    broken = flaw(events, log_id, head)
    if broken:
        complain(f"the log of {log_id} is broken: {broken}")
        raise typer.Exit(1)
    known = ", and has the noted head" if head else ""
    last = f"\nhead {events[-1].hash}" if events else ""  # the log of a new store is empty
    output().print(
        f"the log of {log_id} is sound: {counted(len(events), 'event')}{known}{last}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
