from dataclasses import replace
from datetime import timedelta

from hfmds.cli.tables.snapshots import shards_table, snapshot_table, snapshots_table
from hfmds.domain.histograms import Histogram, LeakageHistograms
from hfmds.domain.pools import Shard
from hfmds.domain.recipe import Normalisation
from tests.cli.tables.test_runs import has_row, shown
from tests.cli.values import DIGEST, MOMENT, a_snapshot

ONE_SSIM = Histogram(-1.0, 0.01, tuple(10 * (at == 100) for at in range(200)))
OTHERS = {
    "psnr_nearest": Histogram(0.0, 0.5, (10,) + (0,) * 199),
    "ssim_paired": ONE_SSIM,
    "ssim_nearest": ONE_SSIM,
}


def test_snapshots() -> None:
    text = shown(snapshots_table([a_snapshot()], MOMENT + timedelta(hours=2)))
    assert has_row(text, "snapshot-1", "run-1", "2", "40", "10.1 dB", "12.3 MB", "2 h 0 min ago")


def test_snapshot() -> None:
    snapshot = a_snapshot((Shard(DIGEST, 20, "contributor-1"),))
    text = shown(snapshot_table(snapshot))
    assert has_row(text, "images", "40 of 1x16x16", "1 duplicate left out")
    assert has_row(text, "PSNR paired", "mean 10.1 dB, p99 11.2 dB, max 12.3 dB")
    assert has_row(text, "PSNR nearest", "mean 13.4 dB, p99 14.5 dB, max 15.6 dB")
    assert has_row(shown(shards_table(snapshot)), "contributor-1", "20", "1.5 MB", "abab")


def test_the_outcomes_of_samples_are_shown() -> None:
    counts = [0] * 200
    counts[16:20] = [1, 0, 3, 6]
    spread = LeakageHistograms(psnr_paired=Histogram(0.0, 0.5, tuple(counts)), **OTHERS)
    snapshot = replace(
        a_snapshot(),
        parent_snapshot_id="snapshot-0",
        carried_samples=12,
        repeated_samples=3,
        near_duplicates=5,
        near_duplicates_dropped=4,
        leaking_samples=7,
        leaking_samples_dropped=6,
        leaking_batches=2,
        histograms=spread,
        spec=replace(a_snapshot().spec, normalisation=Normalisation((0.5,), (0.25,))),
    )
    text = shown(snapshot_table(snapshot))
    assert has_row(text, "carried over", "12 from snapshot snapshot-0, of which 3 were made again")
    assert has_row(text, "near duplicates", "5, 4 of them left out")
    assert has_row(text, "leaking", "7, 6 of them left out")
    assert has_row(text, "refused", "2 batches for leaking")
    assert has_row(text, "normalisation", "mean 0.5, std 0.25, of pixels from 0 to 1")
    assert has_row(text, "8 ▂▁▅█ 10 dB")
    assert has_row(text, "SSIM nearest", "0 █ 0.01")
    unsought = shown(snapshot_table(replace(a_snapshot(), near_duplicates_unknown=True)))
    assert has_row(unsought, "near duplicates", "not searched: more images than pool.near_max_sa")
    plain = shown(snapshot_table(a_snapshot()))
    for word in ("carried over", "near duplicates", "leaking", "refused", "SSIM"):
        assert word not in plain
