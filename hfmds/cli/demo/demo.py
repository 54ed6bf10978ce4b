"""`hfmds demo` from start to end: services, three runs at the same time, and their report."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from hfmds.cli.connections import admin_client, store_client
from hfmds.cli.demo.data import DemoData, write_demo_data
from hfmds.cli.demo.report import DemoResult, prepare_report_folder, write_report
from hfmds.cli.demo.services import Addresses, DemoServices
from hfmds.cli.demo.setting import HFMDS, DemoSetting
from hfmds.cli.demo.summary import summarise, verdict
from hfmds.cli.downloads import download_snapshot
from hfmds.cli.interrupts import in_thread
from hfmds.cli.progress_display import Display, display_for
from hfmds.cli.tables.runs import comparison_table, leakage_rows
from hfmds.cli.text import counted, decibel, seconds
from hfmds.cli.watch_run import FollowedRun, follow
from hfmds.domain.learning import SyntheticBatch
from hfmds.processes import Supervisor
from hfmds.wire.clients.admin_client import AdminClient

# The demo deletes all state of the processes. An orderly end of ten processes with torch would take
# five seconds, so the demo does not wait for it.
_GRACE_SECONDS = 0.0


async def run_demo(setting: DemoSetting, report: Path, keep: bool, console: Console) -> None:
    """Run the demo and leave nothing behind but the report."""
    prepare_report_folder(report)
    with (
        _workplace(keep, console) as folder,
        Supervisor(folder / "logs", _GRACE_SECONDS) as supervisor,
    ):
        services = DemoServices(supervisor, folder)
        result = await supervisor.guard(_train(setting, services, folder, console))
        supervisor.stop()
        _conclude(result, console)
        for file in await in_thread(write_report, report, result):
            console.print(str(file), markup=False, soft_wrap=True)


async def _train(
    setting: DemoSetting, services: DemoServices, folder: Path, console: Console
) -> DemoResult:
    started = time.monotonic()
    services.start_store()
    data = await in_thread(write_demo_data, setting, folder / "data")
    specs = setting.runs()
    store = await services.addresses("store")
    services.start_coordinator(store, data)
    coordinator = await services.addresses("coordinator")
    services.start_devices(coordinator, store, data)
    _introduce(setting, coordinator, store, console)
    async with admin_client(coordinator.grpc) as client:
        runs = [FollowedRun(label, await client.create_run(spec)) for label, spec in specs.items()]
        await show_all(client, runs, console)
    pool = await _download_pool(store, runs)
    return _result(setting, data, runs, pool, time.monotonic() - started)


async def show_all(client: AdminClient, runs: Sequence[FollowedRun], console: Console) -> None:
    """Follow the runs to their end; raise WrongState if a run is paused."""
    with display_for(console, runs) as display:
        await asyncio.gather(*(_show(client, run, display) for run in runs))
    for run in runs:
        run.require_completed()


async def _show(client: AdminClient, followed: FollowedRun, display: Display) -> None:
    async for new_rounds in follow(client, followed):
        followed.require_not_stuck()  # no operator will resume it
        display.changed(followed, new_rounds)


async def _download_pool(store: Addresses, runs: list[FollowedRun]) -> SyntheticBatch | None:
    last = next(run.pool for run in runs if run.label == HFMDS)
    if last is None:  # too few rounds for a refresh
        return None
    async with store_client(store.grpc) as client:
        return await download_snapshot(client, await client.get_snapshot(last.snapshot_id))


def _result(
    setting: DemoSetting,
    data: DemoData,
    runs: list[FollowedRun],
    pool: SyntheticBatch | None,
    elapsed_seconds: float,
) -> DemoResult:
    summaries = [summarise(run) for run in runs]
    ours = next(summary for summary in summaries if summary.label == HFMDS)
    others = [summary for summary in summaries if summary is not ours]
    return DemoResult(
        setting=setting,
        runs=tuple(runs),
        summaries=tuple(summaries),
        verdict=verdict(ours, others),
        pool=pool,
        real_psnr=data.real_psnr,
        elapsed_seconds=elapsed_seconds,
    )


def _introduce(
    setting: DemoSetting, coordinator: Addresses, store: Addresses, console: Console
) -> None:
    classes = counted(setting.classes_per_device, "class", "classes")
    digits = counted(setting.images_per_device, "handwritten digit")
    console.print(
        f"{counted(setting.devices, 'device')} with {digits} of {classes} each; "
        "a coordinator and a synthesis store, over gRPC on loopback.\n"
        f"Look at it in a browser: {coordinator.web}\n"
        f"or from another terminal:\n"
        f"  curl http://{coordinator.metrics}/metrics   (coordinator)\n"
        f"  curl http://{store.metrics}/metrics   (synthesis store)\n"
        f"  hfmds devices --coordinator {coordinator.grpc}\n"
        f"  hfmds snapshots --store {store.grpc}",
        soft_wrap=True,
    )


def _conclude(result: DemoResult, console: Console) -> None:
    console.print(comparison_table(result.summaries))
    plain = not console.is_terminal  # a file needs no line breaks
    style = "bold green" if result.verdict.ahead else "yellow"
    console.print(result.verdict.words, style=style, soft_wrap=plain)
    leakage = next((run.leakage for run in result.summaries if run.leakage), None)
    if leakage:
        console.print(
            "Measured leakage of the pool: PSNR to the nearest real image on the device "
            "{} mean, {} max".format(*leakage_rows(leakage)["nearest"][::2])
            + _yardstick(result.real_psnr),
            soft_wrap=plain,
        )
    console.print(
        "The runs share the devices' caches: what two of them have in common moves once.",
        soft_wrap=plain,
    )
    console.print(f"Took {seconds(result.elapsed_seconds)}. Report:")


def _yardstick(real_psnr: NDArray[np.float32]) -> str:
    if not len(real_psnr):  # one image per device
        return "."
    return f"; of real images to the nearest other image {decibel(float(real_psnr.mean()))} mean."


@contextmanager
def _workplace(keep: bool, console: Console) -> Iterator[Path]:
    """Make a folder for the time of the demo."""
    folder = Path(tempfile.mkdtemp(prefix="hfmds-demo-"))
    try:
        yield folder
    finally:
        if keep:
            console.print(f"Kept data and logs: {folder}", markup=False, soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
