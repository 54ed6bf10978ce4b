"""Data sets that torchvision can fetch, and what is wrong with their files if they are not whole.

torchvision says only that a data set is "not found or corrupted", and does not check MNIST's files
at all; here each file is looked at first, so that a person knows which one. They are read without
it (`known_files`). It imports torch, so it is imported to fetch a data set, and not before.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfmds.data import known_files
from hfmds.data.folders import looking_at
from hfmds.domain.learning import LabelledImages
from hfmds.errors import ConfigurationError

_KINDS: dict[str, Any] = {
    "cifar10": known_files.CIFAR10,
    "cifar100": known_files.CIFAR100,
    "mnist": known_files.MNIST,
    "fashion-mnist": known_files.FashionMNIST,
}
NAMES = tuple(_KINDS)

_MAX_NAMED = 2  # missing files; when all are missing nobody wants to read them all

Parts = tuple[LabelledImages, LabelledImages, tuple[str, ...]]
"""Training images, test images, class names."""


@dataclass(frozen=True, slots=True)
class _Fault:
    path: Path
    problem: str = ""  # empty: there is no such file


def load(name: str, root: Path, download: bool) -> Parts:
    """A data set of `NAMES` in `root`; if it is not whole there, fetched only with `download`."""
    return load_kind(name, _KINDS[name], root, download)


def load_kind(name: str, kind: Any, root: Path, download: bool) -> Parts:
    """A data set of a kind, which knows its files: one of ours, or a class of torchvision."""
    is_cifar = hasattr(kind, "base_folder")
    with looking_at(root):
        faults = list(_cifar_faults(kind, root) if is_cifar else _idx_faults(kind, root))
    by_hand = _cifar_by_hand(kind, root) if is_cifar else _idx_by_hand(kind, root)
    if faults and not download:
        raise ConfigurationError(
            f"data set {name} is not whole in {root}: {_describe(faults)}; "
            f"ask for its download (hfmds experiment run --download), or {by_hand}"
        )
    if faults:
        fetching = _torchvisions(name, kind) if kind in _KINDS.values() else kind
        _fetch(name, fetching, root, faults, by_hand)
    if is_cifar:
        return known_files.read_cifar(kind, root)
    class_names = (class_name.partition(" - ")[0] for class_name in kind.classes)  # "0 - zero"
    return *known_files.read_idx(kind, _raw_folder(kind, root)), tuple(class_names)


def _torchvisions(name: str, kind: Any) -> Any:
    """torchvision's class of the same name, which can fetch its files."""
    try:
        from torchvision import datasets  # heavy, and only needed here
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"to fetch data set {name} needs torchvision: install hfmds-fl[torch], or use a folder "
            "of images"
        ) from error
    # Built for another torch it fails in any of these ways: a missing operator, library or name.
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise ConfigurationError(
            f"to fetch data set {name} needs torchvision, which cannot be imported "
            f"({_in_a_line(error)}); install a torchvision that fits the torch here, or use a "
            "folder of images"
        ) from error
    return getattr(datasets, kind.__name__)


def _fetch(name: str, kind: Any, root: Path, faults: list[_Fault], by_hand: str) -> None:
    try:
        with _set_aside([fault.path for fault in faults if fault.problem]):
            kind(root, download=True)
    except (RuntimeError, OSError) as error:
        raise ConfigurationError(
            f"data set {name} could not be fetched into {root} ({_in_a_line(error)}); "
            f"check the connection and that the folder can be written, or {by_hand}"
        ) from error


@contextlib.contextmanager
def _set_aside(paths: Sequence[Path]) -> Iterator[None]:
    """Broken files out of the way: torchvision takes a MNIST file that exists for whole.

    Without a connection a broken file is all there is, so one that was not replaced comes back.
    """
    moves = [(path, path.with_name(f"{path.name}.broken")) for path in paths]
    try:
        for path, aside in moves:
            path.replace(aside)
        yield
    finally:
        for path, aside in moves:
            if path.exists():
                aside.unlink(missing_ok=True)
            elif aside.exists():
                aside.replace(path)


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _cifar_faults(kind: Any, root: Path) -> Iterator[_Fault]:
    meta = (kind.meta["filename"], kind.meta["md5"])
    for file_name, md5 in (*kind.train_list, *kind.test_list, meta):
        path = root / kind.base_folder / file_name
        if not path.is_file():
            yield _Fault(path)
        elif hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != md5:
            yield _Fault(path, "its MD5 is not that of the original")


def _cifar_by_hand(kind: Any, root: Path) -> str:
    return f"unpack {kind.url} in {root}"


def _idx_faults(kind: Any, root: Path) -> Iterator[_Fault]:
    counts: dict[str, int] = {}
    for resource, _ in kind.resources:
        path = _raw_folder(kind, root) / Path(resource).stem
        data = known_files.idx_bytes(path)
        if data is None:
            yield _Fault(path)
            continue
        part, what = path.name.split("-")[:2]  # "train" or "t10k", "images" or "labels"
        shape = known_files.idx_shape(data, dimensions=3 if what == "images" else 1)
        if shape is None:
            yield _Fault(path, f"it is no idx file of {what}")
            continue
        size, expected = len(data), 4 + 4 * len(shape) + math.prod(shape)
        if size != expected:
            yield _Fault(path, f"it has {size} bytes, but should have {expected}")
        elif counts.setdefault(part, shape[0]) != shape[0]:
            yield _Fault(path, f"it has {shape[0]} labels for {counts[part]} images")


def _idx_by_hand(kind: Any, root: Path) -> str:
    return f"unpack the .gz files of {kind.mirrors[0]} in {_raw_folder(kind, root)}"


def _raw_folder(kind: Any, root: Path) -> Path:
    return root / str(kind.__name__) / "raw"


def _describe(faults: list[_Fault]) -> str:
    missing = [f"{fault.path} is missing" for fault in faults if not fault.problem]
    broken = [f"{fault.path} is broken ({fault.problem})" for fault in faults if fault.problem]
    more = len(missing) - _MAX_NAMED
    named = [*missing[:_MAX_NAMED], *([f"{more} more are missing"] if more > 0 else []), *broken]
    return ", ".join(named)
