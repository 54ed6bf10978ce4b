from datetime import timedelta

from hfmds.cli.snapshot_tables import shards_table, snapshot_table, snapshots_table
from hfmds.wire.types import Shard
from tests.cli.test_tables import has_row, shown
from tests.cli.values import DIGEST, MOMENT, a_snapshot


def test_snapshots() -> None:
    text = shown(snapshots_table([a_snapshot()], MOMENT + timedelta(hours=2)))
    assert has_row(text, "snapshot-1", "run-1", "2", "40", "10.1 dB", "12.3 MB", "2 h 0 min ago")


def test_snapshot() -> None:
    snapshot = a_snapshot((Shard(DIGEST, 20, "contributor-1"),))
    text = shown(snapshot_table(snapshot))
    assert has_row(text, "images", "40 of 1x16x16", "1 duplicates left out")
    assert has_row(text, "PSNR paired", "mean 10.1 dB, p99 11.2 dB, max 12.3 dB")
    assert has_row(text, "PSNR nearest", "mean 13.4 dB, p99 14.5 dB, max 15.6 dB")
    assert has_row(shown(shards_table(snapshot)), "contributor-1", "20", "1.5 MB", "abab")
