"""`hfmds snapshots collect`, `release` and `withdraw`: remove data from the store."""

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
        bool, typer.Option("--dry-run", help="Only show what the command would remove.")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Remove the snapshots that no run needs, and the files that no other snapshot has.

    Until it is deleted, a run needs its newest snapshots (HFMDS_KEEP_SNAPSHOTS of the store) and
    those that it refers to.
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

    collected = ask_store(store, all_of_them)
    for snapshot_id in collected.snapshot_ids:
        typer.echo(snapshot_id)
    removed, erased = ("would remove", "erase") if dry_run else ("removed", "erased")
    _print(
        f"{removed} {counted(len(collected.snapshot_ids), 'snapshot')}, and {erased} "
        f"{counted(collected.erased_blobs, 'file')} of {size(collected.erased_bytes)}"
    )


def release(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Release all pools and snapshots of a run whose coordinator is lost.

    This cannot be undone: a running run would lose them. `hfmds run delete` does it itself.
    """
    if not yes:
        typer.confirm(f"release all pools and snapshots of run {run_id}?", abort=True)
    snapshots = ask_store(store, lambda client: client.release_run(run_id))
    _print(
        f"run {run_id} has released {counted(snapshots, 'snapshot')}, and its open pools are "
        "abandoned; `hfmds snapshots collect` removes them immediately"
    )


def withdraw(
    device_id: Annotated[str, typer.Argument(metavar="DEVICE", help="Id of the device.")],
    run_id: Annotated[
        str,
        typer.Option(
            "--run", metavar="RUN", help="Withdraw only from this run; default: from all runs."
        ),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Withdraw a device: no later snapshot has its images, and the store takes no more of them.

    This cannot be undone. Sealed snapshots keep the device's images until the store collects them.
    """
    if not yes:
        typer.confirm(f"withdraw {device_id} for good?", abort=True)
    withdrawal = ask_store(store, lambda client: client.withdraw_device(device_id, run_id))
    batches = counted(withdrawal.removed_batches, "batch", "batches")
    _print(
        f"{device_id} is withdrawn: {batches} left open pools, and its images are still in "
        f"{counted(withdrawal.remaining_snapshots, 'snapshot')}"
    )


def _print(text: str) -> None:
    output().print(text, markup=False, highlight=False, soft_wrap=True)
