"""The decoded images of a folder, kept in a hidden file of it: 60,000 JPEGs in 2 s instead of 13.

Never stale: the file says of which image files it was made, by name, size, inode and times, and by
which Pillow; if anything differs the images are decoded again. Never needed: a folder that cannot
be written, or a file that is broken, costs time and nothing else. It may be deleted at will.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import time
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import PIL
from numpy.typing import NDArray

BROKEN_ARRAYS: tuple[type[Exception], ...] = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    OverflowError,
    SyntaxError,
    RuntimeError,  # NotImplementedError and RecursionError, too
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What numpy raises, or lets through, when an .npy or .npz file is not what it says."""

FILE_NAME = ".hfmds-decoded.npz"

_FORM = 1  # of the file; a change of what decoding means must raise it
# A file changed twice within one tick of the file system's clock may look unchanged. FAT's is 2 s.
_SETTLED_NS = 3_000_000_000
_ABANDONED_NS = 3_600_000_000_000  # nobody writes for an hour


def decoded(
    folder: Path,
    files: Sequence[Path],
    decode: Callable[[], NDArray[np.uint8]],
    clock_ns: Callable[[], int] = time.time_ns,
) -> NDArray[np.uint8]:
    """The images of these files of the folder: as kept, or else by `decode`, and then kept."""
    started_ns = clock_ns()
    try:
        fingerprint, changed_ns = _fingerprint(folder, files)
    except OSError:  # decoding will say which file it is
        return decode()
    kept = _read(folder / FILE_NAME, fingerprint, len(files))
    if kept is not None:
        return kept
    pixels = decode()
    if changed_ns + _SETTLED_NS < started_ns:
        with contextlib.suppress(OSError):  # it can be done without
            _remove_abandoned(folder / FILE_NAME, clock_ns())
            # Were files changed meanwhile, nobody will find this fingerprint again.
            _write(folder / FILE_NAME, fingerprint, pixels)
    return pixels


def _fingerprint(folder: Path, files: Sequence[Path]) -> tuple[bytes, int]:
    """What identifies these files' content, and when the youngest of them was last changed."""
    digest = hashlib.sha256(repr((_FORM, PIL.__version__)).encode())
    changed_ns = 0
    for file in files:
        stat = file.stat()
        # Names, sizes and mtime alone would miss two bitmaps of one archive that swapped places.
        what = (stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
        digest.update(repr((str(file.relative_to(folder)), what)).encode())
        changed_ns = max(changed_ns, stat.st_mtime_ns, stat.st_ctime_ns)
    return digest.digest(), changed_ns


def _read(path: Path, fingerprint: bytes, count: int) -> NDArray[np.uint8] | None:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if arrays["fingerprint"].tobytes() != fingerprint:
                return None
            pixels: NDArray[np.uint8] = arrays["pixels"]  # zip checks its CRC
    except BROKEN_ARRAYS + (MemoryError,):  # noqa: RUF005 (mypy knows no other way)
        return None  # if it is memory that lacks, decoding will say so
    fits = pixels.dtype == np.uint8 and pixels.ndim == 4 and len(pixels) == count
    return pixels if fits else None


def _remove_abandoned(path: Path, now_ns: int) -> None:
    """Drafts of processes that were killed while they wrote.

    A process on another machine may be taken for dead; then it has written in vain, no more.
    """
    for draft in path.parent.glob(_draft(path, "*").name):
        pid = draft.stem.rpartition("-")[2]
        dead = pid.isdecimal() and not _lives(int(pid))
        with contextlib.suppress(OSError):  # gone already, or another's
            if dead or draft.stat().st_mtime_ns + _ABANDONED_NS < now_ns:
                draft.unlink()


def _lives(pid: int) -> bool:
    if os.name != "posix":  # elsewhere the question would end the process
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is another's
    return True


def _draft(path: Path, writer: object) -> Path:
    return path.with_name(f"{path.stem}-{writer}.part")


def _write(path: Path, fingerprint: bytes, pixels: NDArray[np.uint8]) -> None:
    draft = _draft(path, os.getpid())
    try:
        with draft.open("wb") as file:
            np.savez(file, fingerprint=np.frombuffer(fingerprint, np.uint8), pixels=pixels)
        draft.replace(path)  # whoever reads sees the old file or the new one
    finally:
        draft.unlink(missing_ok=True)
