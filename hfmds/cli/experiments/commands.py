"""`hfmds experiment ...`: the commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hfmds.cli.terminal import output
from hfmds.errors import ConfigurationError

app = typer.Typer(
    help="Run the experiments of the paper: one command per table or figure.",
    no_args_is_help=True,
)

_INTERRUPTED = 130  # what shells expect after Ctrl-C

Name = Annotated[
    str, typer.Argument(metavar="NAME_OR_FILE", help="Name of an experiment, or a Python file.")
]
Size = Annotated[
    str,
    typer.Option(
        help="small (table2 small: 99 trials, about an hour on two cores), or paper (the paper's "
        "own setting: days on a few cores)."
    ),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the results of all experiments.")]
_OUT = Path("hfmds-results")


@app.command("list")
def list_experiments() -> None:
    """Show the experiments that come with the program."""
    # Imported late: other commands need none of it.
    from hfmds.cli.experiments.catalogue_table import experiments_table

    output().print(experiments_table())


@app.command()
def run(
    name: Name,
    size: Size = "small",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Data set instead of the experiment's own: cifar10, cifar100, mnist, "
            "fashion-mnist, digits[:SIZE], or a folder with `train/<class>/*.jpg` and "
            "`test/<class>/*.jpg`, or with train.npz and test.npz (hfmds data pack).",
        ),
    ] = None,
    data_root: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of fetched data sets (hfmds data fetch).")
    ] = Path("hfmds-data/datasets"),
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the data set if it is not there.")
    ] = False,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,..", help="Seeds instead of the experiment's own.")
    ] = None,
    out: Out = _OUT,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of trials at a time.", show_default="one per core"),
    ] = None,
    compute_device: Annotated[
        str,
        typer.Option(
            metavar="cpu|cuda|mps|auto",
            help="Where devices learn. On a GPU, numbers may differ from run to run.",
        ),
    ] = "cpu",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ARM", help="Run only this arm. The option may be repeated."),
    ] = None,
    save_seconds: Annotated[
        float, typer.Option(min=0, help="Most seconds of work of a trial that a kill may cost.")
    ] = 20.0,
) -> None:
    """Run the missing trials of an experiment and write its report.

    Trials of other experiments are used again. After a kill or Ctrl-C the same command continues.
    The report is in DIR/NAME-SIZE: table.md, pictures, results.json.
    """
    from hfmds.cli.experiments.run import RunOptions, run_experiment

    options = RunOptions(
        name=name,
        size=size,
        data=data,
        data_root=data_root,
        download=download,
        seeds=_seeds(seeds) if seeds is not None else None,
        out=out,
        workers=workers,
        compute_device=compute_device,
        only=tuple(only or ()),
        save_seconds=save_seconds,
    )
    console = output()
    try:
        run_experiment(console, options)
    except KeyboardInterrupt:
        console.print("Stopped. The same command goes on from here.")
        raise typer.Exit(_INTERRUPTED) from None


@app.command()
def report(name: Name, size: Size = "small", out: Out = _OUT) -> None:
    """Write the report of an experiment again from stored results, also while it runs."""
    from hfmds.cli.experiments.run import report_experiment

    report_experiment(output(), name, size, out)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(int(item) for item in text.replace(",", " ").split())
    except ValueError:
        seeds = ()
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigurationError(
            f"--seeds is {text!r}; it must be different whole numbers with commas, such as 0,1,2"
        )
    return seeds
