"""`hfmds snapshots collect`, `release` and `withdraw`: what the store shall keep no longer."""

from __future__ import annotations

from typing import Annotated

import typer

from hfmds.cli.connections import DEFAULT_STORE, StoreOption, ask_store
from hfmds.cli.terminal import output
from hfmds.cli.text import counted, size
from hfmds.domain.pools import Collected
from hfmds.wire.clients.store_client import StoreClient


def collect(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Remove the snapshots that no run needs, and what is in no other.

    A run needs its newest ones (HFMDS_KEEP_SNAPSHOTS of the store) and those it has named, until it
    is deleted.
    """

    async def all_of_them(client: StoreClient) -> Collected:
        total = Collected((), 0, 0)
        while True:
            more = await client.collect_snapshots(dry_run=dry_run)
            total = Collected(
                total.snapshot_ids + more.snapshot_ids,
                total.erased_blobs + more.erased_blobs,
                total.erased_bytes + more.erased_bytes,
            )
            if dry_run or not more.snapshot_ids:
                return total

    found = ask_store(store, all_of_them)
    for snapshot_id in found.snapshot_ids:
        typer.echo(snapshot_id)
    removed, erased = ("would remove", "erase") if dry_run else ("removed", "erased")
    _say(
        f"{removed} {counted(len(found.snapshot_ids), 'snapshot')}, and {erased} "
        f"{counted(found.erased_blobs, 'file')} of {size(found.erased_bytes)}"
    )


def release(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Give up all pools and snapshots of a run whose coordinator is lost, and cannot delete it.

    This cannot be undone: a run that is still at work would lose them. `hfmds run delete` does it
    by itself.
    """
    if not yes:
        typer.confirm(f"give up all that the store has of run {run_id}?", abort=True)
    snapshots = ask_store(store, lambda client: client.release_run(run_id))
    _say(
        f"run {run_id} has given up {counted(snapshots, 'snapshot')}, and its open pools are "
        "abandoned; `hfmds snapshots collect` removes them at once"
    )


def withdraw(
    device_id: Annotated[str, typer.Argument(metavar="DEVICE", help="Id of the device.")],
    run_id: Annotated[
        str,
        typer.Option("--run", metavar="RUN", help="Only from this run; otherwise from all."),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Take a device's consent back: later snapshots have nothing of it, and it may put no more.

    This cannot be undone. Snapshots that are sealed stay as they are until they are collected;
    what they have of the device is erased with the last of them.
    """
    if not yes:
        typer.confirm(f"withdraw {device_id} for ever?", abort=True)
    found = ask_store(store, lambda client: client.withdraw_device(device_id, run_id))
    _say(
        f"{device_id} is withdrawn: {counted(found.removed_batches, 'batch', 'batches')} left open "
        f"pools, and something of it is still in {counted(found.remaining_snapshots, 'snapshot')}"
    )


def _say(text: str) -> None:
    output().print(text, markup=False, highlight=False, soft_wrap=True)
