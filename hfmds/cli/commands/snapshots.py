"""`hfmds snapshots ...`: show, draw, save and compare sealed pools of synthetic images."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from typer.core import TyperGroup

from hfmds.algorithm.pool import concatenate
from hfmds.cli.connections import DEFAULT_STORE, StoreOption, ask_store
from hfmds.cli.downloads import replacing
from hfmds.cli.json_values import to_json
from hfmds.cli.snapshots.diff import Difference, by_samples, by_shards
from hfmds.cli.snapshots.export import SnapshotFormat, exporting
from hfmds.cli.snapshots.grid import rows_of
from hfmds.cli.tables.snapshots import (
    SHARDS_SHOWN,
    classes_table,
    difference_table,
    leakage_table,
    pool_table,
    shards_table,
    snapshot_table,
    snapshots_table,
)
from hfmds.cli.terminal import output
from hfmds.domain.learning import LabelledImages
from hfmds.domain.pools import Snapshot
from hfmds.errors import ConfigurationError
from hfmds.wire.clients.store_client import StoreClient
from hfmds.wire.shards import download_shards, shards_with


class ListByDefault(TyperGroup):
    """A group of commands whose default command is `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command, so that options of the group are those of `list`."""
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ListByDefault,
    help="Show sealed pools of synthetic images. Without a command: list them.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
SnapshotId = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Id of the snapshot.")]
OfRun = Annotated[str, typer.Option("--run", metavar="RUN", help="Only snapshots of this run.")]


@app.command("list")
def list_snapshots(
    run_id: OfRun = "", as_json: AsJson = False, store: StoreOption = DEFAULT_STORE
) -> None:
    """Show all snapshots, newest first."""
    snapshots = ask_store(store, lambda client: client.list_snapshots(run_id))
    if as_json:
        typer.echo(to_json(snapshots))
    elif snapshots:
        output().print(snapshots_table(snapshots, datetime.now(UTC)))
    else:
        of_run = f" of run {run_id}" if run_id else ""
        output().print(f"no snapshots{of_run} yet; runs of methods that share images make them")


@app.command()
def show(
    snapshot_id: SnapshotId,
    all_shards: Annotated[bool, typer.Option("--all", help="List all shards.")] = False,
    as_json: AsJson = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Show a snapshot: its classes, its measured leakage and its contributors."""
    snapshot = ask_store(store, lambda client: client.get_snapshot(snapshot_id))
    if as_json:
        typer.echo(to_json(snapshot))
        return
    console = output()
    console.print(snapshot_table(snapshot))
    console.print(classes_table(snapshot))
    console.print(shards_table(snapshot, None if all_shards else SHARDS_SHOWN))
    if len(snapshot.shards) > SHARDS_SHOWN and not all_shards:
        console.print(f"and {len(snapshot.shards) - SHARDS_SHOWN} more shards; --all lists them")


@app.command()
def pool(
    pool_id: Annotated[str, typer.Argument(metavar="POOL", help="Id of the pool.")],
    as_json: AsJson = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Show a pool, sealed or not: its content and its state."""
    pool = ask_store(store, lambda client: client.get_pool(pool_id))
    if as_json:
        typer.echo(to_json(pool))
    else:
        output().print(pool_table(pool))


@app.command()
def grid(
    snapshot_id: SnapshotId,
    file: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="File to write.", show_default="SNAPSHOT.png"
        ),
    ] = None,
    per_class: Annotated[int, typer.Option(min=1, max=100, help="Most images of each class.")] = 20,
    classes: Annotated[
        list[int] | None,
        typer.Option(
            "--class",
            metavar="NUMBER",
            help="Class to draw. The option may be repeated.",
            show_default="all",
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Draw images of a snapshot as a PNG file, one row for each class.

    The command downloads only the shards that it draws from.
    """
    path = file or Path(f"{snapshot_id}.png")
    if path.suffix != ".png":
        raise ConfigurationError(f"{path}: the file name must end in .png")

    async def download(client: StoreClient) -> tuple[Snapshot, LabelledImages]:
        snapshot = await client.get_snapshot(snapshot_id)
        wanted = rows_of(snapshot, classes)
        shards = shards_with(snapshot.shards, wanted, per_class)
        batches = [b async for _, b in download_shards(client, snapshot, shards)]
        images = concatenate(batches).images
        return snapshot, images.take(np.flatnonzero(np.isin(images.labels, wanted)))

    snapshot, images = ask_store(store, download)
    from hfmds.cli.demo.report_plots import draw_pool  # slow to import

    with replacing(path) as draft:
        draw_pool(
            draft,
            images,
            what=f"Snapshot {snapshot_id}",
            of=snapshot.samples,
            columns=per_class,
        )
    output().print(f"{path}: drawn", markup=False, soft_wrap=True)


@app.command()
def export(
    snapshot_id: SnapshotId,
    path: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="PATH",
            help="File to write.",
            show_default="SNAPSHOT with the ending of its format",
        ),
    ] = None,
    kind: Annotated[
        SnapshotFormat,
        typer.Option("--format", help="Form: a file of arrays, a folder of PNG files, or a tar."),
    ] = SnapshotFormat.NPZ,
    class_names: Annotated[
        str,
        typer.Option(
            help="Names for the folders of classes, in label order, separated by commas.",
            show_default="numbers",
        ),
    ] = "",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Save a snapshot so that other tools can train on it.

    A device can read an .npz file or a folder (hfmds-edge-client --data). For mixtures, as FedMix
    makes them, every format also has the class shares.
    """
    target = path or Path(f"{snapshot_id}{kind.suffix}")
    names = tuple(name.strip() for name in class_names.split(",")) if class_names else ()

    async def download(client: StoreClient) -> Snapshot:
        snapshot = await client.get_snapshot(snapshot_id)
        with exporting(target, kind, snapshot, names) as add:
            async for shard, batch in download_shards(client, snapshot, snapshot.shards):
                add(shard, batch)
        return snapshot

    snapshot = ask_store(store, download)
    of = "mixtures, with their class shares" if snapshot.spec.with_shares else "images"
    output().print(f"{target}: {snapshot.samples} {of}", markup=False, soft_wrap=True)


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="Id of the first snapshot.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="Id of the second snapshot.")],
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Download the shards that differ, and compare sample by sample."
        ),
    ] = False,
    as_json: AsJson = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Compare two snapshots: the samples of each class, and their leakage.

    Without --exact, a sample that moved to another shard counts as removed and added.
    """

    async def compare(client: StoreClient) -> Difference:
        old, new = await client.get_snapshot(before), await client.get_snapshot(after)
        if exact:
            return await by_samples(old, new, partial(download_shards, client))
        return by_shards(old, new)

    difference = ask_store(store, compare)
    if as_json:
        typer.echo(to_json(difference))
        return
    console = output()
    for which, snapshot in (("from", difference.before), ("to", difference.after)):
        of = f"of run {snapshot.spec.run_id}, round {snapshot.spec.round_number}"
        line = f"{which} snapshot {snapshot.snapshot_id} {of}"
        console.print(line, markup=False, soft_wrap=True)
    console.print(difference_table(difference))
    console.print(leakage_table(difference))
