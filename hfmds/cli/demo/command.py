"""The `hfmds demo` command and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hfmds.cli.demo.setting import DEMO_OPTIONS, DemoSetting, setting_from
from hfmds.cli.interrupts import run_interruptible
from hfmds.cli.terminal import output
from hfmds.errors import ConfigurationError, InvalidInput
from hfmds.service.process.options import with_options


@with_options(DEMO_OPTIONS)
def demo(
    report: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the report; it replaces an older one.")
    ] = Path("hfmds-report"),
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the data and logs of all processes.")
    ] = False,
    **given: Any,
) -> None:
    """Show a fleet on this machine that learns by FedAvg and by HFMDS-FL.

    Starts a coordinator, a synthesis store and the devices as processes of their own, with digits
    split so that each device has few classes. Trains FedAvg, FedAvg at a tenth of the learning
    rate and HFMDS-FL at once, compares them and writes a report. Ctrl-C stops everything.
    """
    try:
        setting = setting_from(given)
        setting.runs()  # a wrong setting fails before any process starts
    except InvalidInput as error:
        raise ConfigurationError(str(error)) from error
    run_interruptible(_run(setting, report, keep))


async def _run(setting: DemoSetting, report: Path, keep: bool) -> None:
    from hfmds.cli.demo.demo import run_demo  # slow to import

    await run_demo(setting, report, keep, output())
