"""`hfmds backup` and `hfmds restore`: copy the embedded storage of a program, and put it back."""

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

# The programs' own defaults; a test compares them.
DATA_DIRS = {
    Program.COORDINATOR: Path("hfmds-data/coordinator"),
    Program.SYNTHESIS_STORE: Path("hfmds-data/store"),
}

ProgramName = Annotated[Program, typer.Argument(help="The program whose storage it is.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="HFMDS_DATA_DIR",
        metavar="FOLDER",
        help="Data folder of the program; unset: the program's default.",
        show_envvar=True,
    ),
]


def backup(
    program: ProgramName,
    target: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Folder of the backup. It must be new, except with --keep."
        ),
    ],
    data_dir: DataDir = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            min=1,
            metavar="NUMBER",
            help="Keep so many backups in FOLDER, each named by its time.",
        ),
    ] = None,
) -> None:
    """Copy the embedded storage of a program to a new folder. The program may run.

    Back up the coordinator first, then the store: the store must hold all that the coordinator
    refers to.
    """
    source = data_dir or DATA_DIRS[program]
    if keep is None:
        copy = backups.back_up(program.value, source, target)
    else:
        target, copy = back_up_in_turn(program.value, source, target, keep, datetime.now(UTC))
    _print(f"{target}: the {_contents(copy)}")


def restore(
    program: ProgramName,
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="The backup.")],
    data_dir: DataDir = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare the backup with its digests.")
    ] = False,
) -> None:
    """Restore a backup into a data folder that is empty or does not exist.

    The command compares every byte with its digest before it writes anything.
    """
    if check:
        backup = backups.check(source, program.value)
        _print(f"{source} is sound: the {_contents(backup)}")
        return
    folder = data_dir or DATA_DIRS[program]
    restored = backups.restore(source, program.value, folder)
    _print(f"{folder}: the {_contents(restored)}")


def _contents(backup: backups.Backup) -> str:
    return (
        f"database and {counted(backup.blobs, 'blob')} of the {backup.program}, "
        f"{backup.size_bytes / 1e6:.1f} MB, as of {backup.made_at}"
    )


def _print(text: str) -> None:
    output().print(text, markup=False, soft_wrap=True)
