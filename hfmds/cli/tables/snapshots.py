"""Tables of snapshots and pools."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.table import Table

from hfmds.cli.snapshots.diff import Difference
from hfmds.cli.tables.layout import add_row, facts_table, new_table
from hfmds.cli.tables.runs import leakage_rows
from hfmds.cli.text import ago, bar, counted, decibel, size, sparkline
from hfmds.domain.histograms import Histogram
from hfmds.domain.learning import LeakageSummary
from hfmds.domain.pools import PoolStatus, Snapshot

SHARDS_SHOWN = 20
_SPREAD_COLUMNS = 40


def snapshots_table(snapshots: Sequence[Snapshot], now: datetime) -> Table:
    """Return one row for each snapshot."""
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
    """Return the facts of a snapshot as names and values."""
    spec, model = snapshot.spec, snapshot.spec.model
    facts = facts_table(f"snapshot {snapshot.snapshot_id}")
    add_row(facts, "run", f"{spec.run_id}, round {spec.round_number}, {spec.method}")
    add_row(facts, "model", f"version {spec.weights.sha256[:12]}, {model.architecture}")
    add_row(facts, "sealed", f"{snapshot.sealed_at:%Y-%m-%d %H:%M:%S %Z}")
    add_row(
        facts,
        "images",
        f"{snapshot.samples} of {model.channels}x{model.height}x{model.width}, "
        f"{size(snapshot.size_bytes)}, {counted(snapshot.duplicates, 'duplicate')} left out",
    )
    if spec.with_shares:
        add_row(facts, "", "mixtures with class shares, each counted in its largest class")
    for name, text in _treatment(snapshot):
        add_row(facts, name, text)
    if spec.normalisation:
        mean, std = (
            " ".join(f"{v:g}" for v in vs) for vs in dataclasses.astuple(spec.normalisation)
        )
        add_row(facts, "normalisation", f"mean {mean}, std {std}, of pixels from 0 to 1")
    spread = snapshot.histograms
    for name, row in leakage_rows(snapshot.leakage).items():
        add_row(facts, f"PSNR {name}", "mean {}, p99 {}, max {}".format(*row))
        if spread.samples:
            add_row(facts, "", f"{_bars(getattr(spread, f'psnr_{name}'))} dB")
    if spread.samples:
        add_row(facts, "SSIM paired", _bars(spread.ssim_paired))
        add_row(facts, "SSIM nearest", _bars(spread.ssim_nearest))
    return facts


def pool_table(pool: PoolStatus) -> Table:
    """Return the facts of a pool as names and values."""
    spec, spread = pool.spec, pool.leakage
    facts = facts_table(f"pool {pool.pool_id}")
    add_row(facts, "state", pool.state.value)
    if pool.state_reason:
        add_row(facts, "reason", pool.state_reason)
    if pool.snapshot_id:
        add_row(facts, "snapshot", pool.snapshot_id)
    add_row(facts, "run", f"{spec.run_id}, round {spec.round_number}, {spec.method}")
    add_row(facts, "opened", f"{pool.opened_at:%Y-%m-%d %H:%M:%S %Z}")
    add_row(facts, "images", f"{pool.samples} of {counted(pool.devices, 'device')}")
    if pool.leaking_samples or pool.leaking_batches:
        refused = counted(pool.leaking_batches, "batch", "batches")
        leaking = f"{counted(pool.leaking_samples, 'image')}, and {refused} refused for it"
        add_row(facts, "leaking", leaking)
    if spread.samples:
        for real in ("paired", "nearest"):
            add_row(facts, f"PSNR {real}", f"{_bars(getattr(spread, f'psnr_{real}'))} dB")
            add_row(facts, f"SSIM {real}", _bars(getattr(spread, f"ssim_{real}")))
    return facts


def _treatment(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield which samples were carried over, left out or refused."""
    if snapshot.parent_snapshot_id:
        origin = f"{snapshot.carried_samples} from snapshot {snapshot.parent_snapshot_id}"
        if snapshot.repeated_samples:
            origin += f", of which {snapshot.repeated_samples} were made again"
        yield "carried over", origin
    if near := snapshot.near_duplicates:
        yield "near duplicates", f"{near}, {snapshot.near_duplicates_dropped} of them left out"
    if snapshot.near_duplicates_unknown:
        yield "near duplicates", "not searched: more images than pool.near_max_samples"
    if leaking := snapshot.leaking_samples:
        yield "leaking", f"{leaking}, {snapshot.leaking_samples_dropped} of them left out"
    if batches := snapshot.leaking_batches:
        yield "refused", f"{counted(batches, 'batch', 'batches')} for leaking"


def _bars(histogram: Histogram) -> str:
    """Return a histogram as bars, from the first range with values to the last."""
    there = [at for at, count in enumerate(histogram.counts) if count]
    first, last = there[0], there[-1] + 1
    step = -(-(last - first) // _SPREAD_COLUMNS)
    counts = [sum(histogram.counts[at : at + step]) for at in range(first, last, step)]
    low, high = (histogram.lowest + histogram.width * at for at in (first, last))
    return f"{low:g} {sparkline([n / max(counts) for n in counts], len(counts))} {high:g}"


def classes_table(snapshot: Snapshot) -> Table:
    """Return one row for each class with images, with a bar for their number."""
    table = new_table()
    table.add_column("class", no_wrap=True, justify="right")
    table.add_column("images", no_wrap=True, justify="right")
    table.add_column("", no_wrap=True)
    most = max(snapshot.class_histogram, default=0)
    for c, count in enumerate(snapshot.class_histogram):
        if count:
            add_row(table, str(c), str(count), bar(count / most))
    return table


def shards_table(snapshot: Snapshot, most: int | None = None) -> Table:
    """Return one row for each shard of a snapshot, or for the first `most` of them."""
    table = new_table()
    table.add_column("contributor", overflow="fold")
    table.add_column("from round", justify="right")
    table.add_column("images", justify="right")
    table.add_column("classes", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("sha256", overflow="fold")
    for shard in snapshot.shards[:most]:
        add_row(
            table,
            shard.contributor,
            str(shard.first_round),
            str(shard.samples),
            " ".join(map(str, sorted(shard.class_counts))),
            size(shard.digest.size_bytes),
            shard.digest.sha256[:12],
        )
    return table


def difference_table(difference: Difference) -> Table:
    """Return removed, kept and added shards, samples, and samples of each class."""
    table = new_table()
    table.add_column("", no_wrap=True)
    for name in ("before", "removed", "in both", "added", "after"):
        table.add_column(name, no_wrap=True, justify="right")
    changes = {"shards": difference.shards, "samples": difference.samples}
    changes |= {f"class {c}": change for c, change in enumerate(difference.classes)}
    for name, change in changes.items():
        add_row(
            table,
            name,
            str(change.before),
            f"-{change.removed}" if change.removed else "0",
            str(change.carried),
            f"+{change.added}" if change.added else "0",
            str(change.after),
        )
    return table


def leakage_table(difference: Difference) -> Table:
    """Return the measured leakage of two snapshots and the difference."""
    table = new_table()
    table.add_column("PSNR", no_wrap=True)
    for name in ("before", "after", "change"):
        table.add_column(name, no_wrap=True, justify="right")
    for field in dataclasses.fields(LeakageSummary):
        old: float = getattr(difference.before.leakage, field.name)
        new: float = getattr(difference.after.leakage, field.name)
        name = field.name.replace("_", " ")
        add_row(table, name, decibel(old), decibel(new), f"{round(new - old, 1) + 0.0:+.1f} dB")
    return table
