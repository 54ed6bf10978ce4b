"""`hfmds backup` and `hfmds restore`: copies of a program's embedded storage, and back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from hfmds.cli.commands.database import Program
from hfmds.cli.terminal import output
from hfmds.cli.text import counted
from hfmds.storage.backup import backup as backups
from hfmds.storage.backup.rotation import back_up_in_turn

# As the programs' own defaults; a test compares them.
DATA_DIRS = {
    Program.COORDINATOR: Path("hfmds-data/coordinator"),
    Program.SYNTHESIS_STORE: Path("hfmds-data/store"),
}

ProgramName = Annotated[Program, typer.Argument(help="Whose storage.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="HFMDS_DATA_DIR",
        metavar="FOLDER",
        help="The program's data folder, as it is told; unset: where it looks by itself.",
        show_envvar=True,
    ),
]


def backup(
    program: ProgramName,
    target: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to; must be new, but for --keep.")
    ],
    data_dir: DataDir = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            min=1,
            metavar="NUMBER",
            help="FOLDER is one of backups: the new one is named by the time, and so many stay.",
        ),
    ] = None,
) -> None:
    """Copy the embedded storage of a program, which may be at work, to a new folder.

    Of a fleet the coordinator first, then the store: that one must know what the coordinator names.
    """
    source = data_dir or DATA_DIRS[program]
    if keep is None:
        made = backups.back_up(program.value, source, target)
    else:
        target, made = back_up_in_turn(program.value, source, target, keep, datetime.now(UTC))
    _say(f"{target}: the {_contents(made)}")


def restore(
    program: ProgramName,
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="The backup.")],
    data_dir: DataDir = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare the backup with its digests.")
    ] = False,
) -> None:
    """Put a backup back, into a data folder that is empty or not there.

    Every byte is compared with its digest before anything is written.
    """
    if check:
        found = backups.check(source, program.value)
        _say(f"{source} is sound: the {_contents(found)}")
        return
    folder = data_dir or DATA_DIRS[program]
    restored = backups.restore(source, program.value, folder)
    _say(f"{folder}: the {_contents(restored)}")


def _contents(backup: backups.Backup) -> str:
    return (
        f"database and {counted(backup.blobs, 'blob')} of the {backup.program}, "
        f"{backup.size_bytes / 1e6:.1f} MB, as of {backup.made_at}"
    )


def _say(text: str) -> None:
    output().print(text, markup=False, soft_wrap=True)
