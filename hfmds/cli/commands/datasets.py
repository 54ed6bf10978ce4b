"""`hfmds data ...`: convert images once, so that devices and experiments read them fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hfmds.cli.terminal import output
from hfmds.cli.text import counted
from hfmds.errors import ConfigurationError

app = typer.Typer(help="Pack images into files, and fetch data sets.", no_args_is_help=True)


@app.command()
def pack(
    source: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder with one folder per class, or a .csv.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT.npz", help="File to write.")],
) -> None:
    """Pack the images of a folder into one file, which loads many times faster.

    The file keeps the names of the classes. Devices read it with --data OUT.npz. Experiments read a
    folder with two of them, train.npz and test.npz.
    """
    from hfmds.data.named_images import load_named_images  # other commands need none of it
    from hfmds.data.packed import save_npz

    named = load_named_images(source, "the images")
    try:
        save_npz(out, named.images, named.class_names)
    except OSError as error:
        raise ConfigurationError(f"cannot write {out}: {error.strerror}") from error
    output().print(f"{counted(len(named), 'image')} in {out}", markup=False, soft_wrap=True)


@app.command()
def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="cifar10, cifar100, mnist or fashion-mnist.")
    ],
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of data sets.")] = Path(
        "hfmds-data/datasets"
    ),
) -> None:
    """Fetch a data set with torchvision and pack it into FOLDER/NAME/train.npz and test.npz.

    Devices and experiments then read it without torchvision.
    """
    from hfmds.data import torchvision_sets

    if name not in torchvision_sets.NAMES:
        known = ", ".join(torchvision_sets.NAMES)
        raise ConfigurationError(f"there is no data set {name!r} to fetch; known are {known}")
    folder = torchvision_sets.fetch(name, root)
    output().print(f"train.npz and test.npz are in {folder}", markup=False, soft_wrap=True)
