"""The dashboard *Synthetic data & privacy*: what pools contain, and what they reveal."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from k8s.components.monitoring.sources.panels import (
    BAD,
    FAIR,
    bars,
    board,
    by_run,
    from_label,
    heat,
    lines,
    now,
    number,
    query,
    row,
    window,
)

_NEWEST = "hfmds_store_newest_snapshot"
_NEAREST_P99 = ('real="nearest"', 'statistic="p99"')
_MEASURED = "Devices measure it before they send anything; higher means more alike."


def synthetic_data() -> Dashboard:
    """Build the dashboard of images that devices share."""
    made = board(
        "hfmds-synthetic-data",
        "Synthetic data & privacy",
        "What pools contain, how much their images resemble real ones, and what was refused. A low "
        "PSNR is evidence, not proof, that an image reveals nothing private.",
        [from_label("run", "hfmds_coordinator_pool_samples"), window()],
    )
    _at_a_glance(made)
    _leakage(made)
    _pools(made)
    return made


def _at_a_glance(made: Dashboard) -> None:
    made.with_row(row("At a glance"))
    made.with_panel(
        number(
            "Room below the limit",
            "Smallest distance of a pool's PSNR to a limit of its run. Red: "
            "docs/runbooks.md#privacy-limit-near. None: no run has a limit.",
            query(f"min({_of_each('pool_psnr_limit_db')} - {_of_each('pool_psnr_db')})"),
            unit="dB",
            limits={1: FAIR, 3: "green"},
            below=BAD,
            decimals=1,
        )
    )
    made.with_panel(
        number(
            "Halted pools",
            "Pools that revealed too much. The store erased them, and their runs are paused. "
            "`hfmds snapshots pool POOL` has the reason.",
            query('max(hfmds_store_pools{state="halted"})'),
            limits={1: BAD},
        )
    )
    made.with_panel(
        number(
            "Leaking samples",
            "Share of the window's samples above a limit of their run. Only runs with "
            "`leakage_action` `report` have any.",
            query(
                "sum(rate(hfmds_store_leaking_samples_total[$window])) "
                "/ (sum(rate(hfmds_store_accepted_samples_total[$window])) > 0)"
            ),
            unit="percentunit",
            limits={0.001: FAIR, 0.05: BAD},
            decimals=1,
        )
    )
    made.with_panel(
        number(
            "Withheld on devices",
            "Images that devices withheld because they were above a limit. Many: raise "
            "`hfmds.mu`, which pushes away from real features.",
            query("sum(increase(hfmds_coordinator_fleet_withheld_samples_total[$__range]))"),
            decimals=0,
        )
    )
    made.with_panel(
        number(
            "Images in the newest pool",
            "Images that the devices of each run train on next.",
            query(by_run(f"{_NEWEST}_samples"), "{{run}}"),
        )
    )
    made.with_panel(
        number(
            "Duplicates",
            "Share of the window's samples left out because an equal one was there. Many: "
            "devices have the same data, or send again.",
            query(
                "sum(rate(hfmds_store_duplicate_samples_total[$window])) "
                "/ (sum(rate(hfmds_store_accepted_samples_total[$window])) > 0)"
            ),
            unit="percentunit",
            limits={0.2: FAIR},
            decimals=1,
        )
    )


def _leakage(made: Dashboard) -> None:
    made.with_row(row("Measured leakage"))
    for name, title, unit, none in (
        ("psnr", "PSNR of the newest pools, and their limits", "dB", 100),
        ("ssim", "SSIM of the newest pools, and their limits", "none", 1),
    ):
        suffix = "db" if name == "psnr" else "ratio"
        made.with_panel(
            lines(
                title,
                f"{_MEASURED} To the image a synthetic one was made from (paired), and to the "
                "nearest of the device. "
                "Near its limit: docs/runbooks.md#privacy-limit-near.",
                query(
                    _newest(f"{name}_{suffix}"),
                    "{{run}}: {{real}} {{statistic}}",
                ),
                query(
                    f"{_newest(f'{name}_limit_{suffix}')} < {none}",
                    "{{run}}, limit: {{real}} {{statistic}}",
                ),
                unit=unit,
                steps=True,
                minimum=None,  # SSIM may be below 0
            )
        )
    made.with_panel(
        lines(
            "PSNR of the pools in use, by run",
            f"{_MEASURED} The highest of a hundred (p99), to the nearest real image. It rises "
            "when synthesis runs for more steps. Above its limit, if it has one, a pool is halted.",
            query(by_run("hfmds_coordinator_pool_psnr_db", *_NEAREST_P99), "{{run}}"),
            query(by_run("hfmds_coordinator_pool_psnr_limit_db", *_NEAREST_P99), "limit: {{run}}"),
            unit="dB",
            steps=True,
        )
    )
    made.with_panel(
        lines(
            "Highest PSNR and SSIM of a batch",
            "As devices report with their results, including batches that were never sent. p99 "
            "over batches, to the nearest real image; SSIM in hundredths.",
            query(
                "histogram_quantile(0.99, sum by (le) "
                '(rate(hfmds_coordinator_fleet_batch_psnr_db_bucket{real="nearest"}[$window])))',
                "PSNR in dB",
            ),
            query(
                "100 * histogram_quantile(0.99, sum by (le) "
                '(rate(hfmds_coordinator_fleet_batch_ssim_ratio_bucket{real="nearest"}[$window])))',
                "SSIM in hundredths",
            ),
        )
    )
    made.with_panel(
        heat(
            "Samples by PSNR to the nearest real image",
            f"{_MEASURED} All accepted samples. Watch the upper end.",
            'hfmds_store_sample_psnr_db_bucket{real="nearest"}',
            unit="dB",
        )
    )
    made.with_panel(
        heat(
            "Samples by SSIM to the nearest real image",
            f"{_MEASURED} All accepted samples; 1 is the same image.",
            'hfmds_store_sample_ssim_ratio_bucket{real="nearest"}',
            unit="none",
        )
    )


def _pools(made: Dashboard) -> None:
    made.with_row(row("Pools"))
    made.with_panel(
        bars(
            "The newest pools by class",
            "A missing class is on no device that answered, and devices forget it. The first "
            "hundred classes, then all others.",
            now(
                f'sum by (class) (max by (run, class) ({_NEWEST}_class_samples{{run=~"$run"}}))',
                "{{class}}",
            ),
            height=12,
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Images in the pools in use, by run",
            "One step for each refresh. A fall: fewer devices synthesised, or more was refused.",
            query(by_run("hfmds_coordinator_pool_samples"), "{{run}}"),
            steps=True,
            span=8,
        ).height(12)
    )
    made.with_panel(
        lines(
            "Pools by state",
            "`hfmds snapshots pool POOL` explains a halted pool. Abandoned: nobody sealed the "
            "pool in time.",
            query("max by (state) (hfmds_store_pools)", "{{state}}"),
            steps=True,
            span=8,
        ).height(12)
    )
    made.with_panel(
        lines(
            "Samples",
            "Accepted samples, and of these: exact duplicates that were left out, near "
            "duplicates, samples above a limit.",
            query("sum(increase(hfmds_store_accepted_samples_total[$window]))", "taken"),
            query("sum(increase(hfmds_store_duplicate_samples_total[$window]))", "duplicates"),
            query(
                "sum by (fate) (increase(hfmds_store_near_duplicate_samples_total[$window]))",
                "nearly equal, {{fate}}",
            ),
            query("sum(increase(hfmds_store_leaking_samples_total[$window]))", "leaking"),
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Refused batches, by reason",
            "`leakage`: devices of an older version do not withhold, or lie. `sealed`: too "
            "late, which is normal. `pool_full`: the pool has all samples that the run lets it "
            "have. `limit`: the batch is too large. The store's log names the fault.",
            query(
                "sum by (reason) (increase(hfmds_store_refused_batches_total[$window]))",
                "{{reason}}",
            ),
            stacked=True,
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Content kept",
            "All batches and shards. `hfmds snapshots collect` and `hfmds run delete RUN` free "
            "some.",
            query("max(hfmds_store_content_bytes)", "content"),
            unit="bytes",
            steps=True,
            span=8,
        )
    )


def _of_each(metric: str) -> str:
    """Query each measurement of a run's pool, from any coordinator."""
    return f'max by (run, real, statistic) (hfmds_coordinator_{metric}{{run=~"$run"}})'


def _newest(metric: str) -> str:
    """Query each measurement of a run's newest pool, from any store."""
    return f'max by (run, real, statistic) ({_NEWEST}_{metric}{{run=~"$run"}})'
