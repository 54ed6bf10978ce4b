"""Snapshots as tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table

from hfmds.cli.tables import add_row, facts_table, leakage_rows, new_table
from hfmds.cli.text import ago, decibel, size
from hfmds.wire.types import Snapshot


def snapshots_table(snapshots: Sequence[Snapshot], now: datetime) -> Table:
    """One line per snapshot."""
    table = new_table()
    for name in ("snapshot", "run"):
        table.add_column(name, overflow="fold")
    for name in ("round", "images", "PSNR mean", "max", "size", "sealed"):
        table.add_column(name, no_wrap=True, justify="right")
    for snapshot in snapshots:
        add_row(
            table,
            snapshot.snapshot_id,
            snapshot.spec.run_id,
            str(snapshot.spec.round_number),
            str(snapshot.samples),
            decibel(snapshot.leakage.paired_mean),
            decibel(snapshot.leakage.paired_max),
            size(snapshot.size_bytes),
            ago(snapshot.sealed_at, now),
        )
    return table


def snapshot_table(snapshot: Snapshot) -> Table:
    """What a snapshot is, as names and values."""
    spec, model = snapshot.spec, snapshot.spec.model
    facts = facts_table(f"snapshot {snapshot.snapshot_id}")
    add_row(facts, "run", f"{spec.run_id}, round {spec.round_number}, {spec.method}")
    add_row(facts, "model", f"version {spec.weights.sha256[:12]}, {model.architecture}")
    add_row(facts, "sealed", f"{snapshot.sealed_at:%Y-%m-%d %H:%M:%S %Z}")
    add_row(
        facts,
        "images",
        f"{snapshot.samples} of {model.channels}x{model.height}x{model.width}, "
        f"{size(snapshot.size_bytes)}, {snapshot.duplicates} duplicates left out",
    )
    if spec.with_shares:
        add_row(facts, "", "mixtures with class shares, each counted in the class it has most of")
    add_row(facts, "by class", " ".join(str(count) for count in snapshot.class_histogram))
    for name, row in leakage_rows(snapshot.leakage).items():
        add_row(facts, f"PSNR {name}", "mean {}, p99 {}, max {}".format(*row))
    return facts


def shards_table(snapshot: Snapshot) -> Table:
    """One line per contribution to a snapshot."""
    table = new_table()
    table.add_column("contributor", overflow="fold")
    table.add_column("images", justify="right")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("sha256", overflow="fold")
    for shard in snapshot.shards:
        digest = shard.digest
        add_row(
            table, shard.contributor, str(shard.samples), size(digest.size_bytes), digest.sha256
        )
    return table
