"""`hfmds snapshots`: what the fleet has synthesised."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hfmds.algorithm.types import SyntheticBatch
from hfmds.cli.console import output
from hfmds.cli.downloads import download_snapshot, replacing
from hfmds.cli.peers import DEFAULT_STORE, StoreOption, ask_store
from hfmds.cli.records import to_json
from hfmds.cli.snapshot_tables import shards_table, snapshot_table, snapshots_table
from hfmds.data.sources import save_npz
from hfmds.wire.store_client import StoreClient


class ListByDefault(TyperGroup):
    """A group of commands that means `list` when none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put in the missing name, so that options after the group's name are those of `list`."""
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ListByDefault,
    help="Look at sealed pools of synthetic images; without a command: list them.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
SnapshotId = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Id of the snapshot.")]
OfRun = Annotated[str, typer.Option("--run", metavar="RUN", help="Only those of this run.")]


@app.command("list")
def list_snapshots(
    run_id: OfRun = "", as_json: AsJson = False, store: StoreOption = DEFAULT_STORE
) -> None:
    """List snapshots, newest first."""
    found = ask_store(store, lambda client: client.list_snapshots(run_id))
    if as_json:
        typer.echo(to_json(found))
    elif found:
        output().print(snapshots_table(found, datetime.now(UTC)))
    else:
        output().print("no snapshots yet; runs of the methods that share images make them")


@app.command()
def show(
    snapshot_id: SnapshotId, as_json: AsJson = False, store: StoreOption = DEFAULT_STORE
) -> None:
    """Show a snapshot: its classes, its measured leakage and who contributed."""
    snapshot = ask_store(store, lambda client: client.get_snapshot(snapshot_id))
    if as_json:
        typer.echo(to_json(snapshot))
        return
    console = output()
    console.print(snapshot_table(snapshot))
    console.print(shards_table(snapshot))


@app.command()
def export(
    snapshot_id: SnapshotId,
    file: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Where to.", show_default="SNAPSHOT.npz"),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Save the images and labels of a snapshot as an .npz file, which is also a data source.

    Of mixtures, as FedMix makes them, the file also has the class shares (`shares`).
    """

    async def download(client: StoreClient) -> SyntheticBatch:
        return await download_snapshot(client, await client.get_snapshot(snapshot_id))

    path = file or Path(f"{snapshot_id}.npz")
    pool = ask_store(store, download)
    with replacing(path) as draft:
        save_npz(draft, pool.images)
    kind = "images" if pool.images.shares is None else "mixtures, with their class shares"
    output().print(f"{path}: {len(pool)} {kind}", markup=False, soft_wrap=True)
