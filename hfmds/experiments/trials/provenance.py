"""The origin of a result: versions, and a digest of the code that learns."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import hfmds.algorithm

_PACKAGES = ("hfmds-fl", "numpy", "torch")


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "code": _code_digest(),
    }
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def _code_digest() -> str:
    """Return the digest of the sources that learning depends on, with their comments."""
    package = Path(hfmds.algorithm.__file__).parents[1]
    digest = hashlib.sha256()
    for room in ("algorithm", "data", "domain"):
        for source in sorted((package / room).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


# Computed at import: the files may change while this process runs.
VERSIONS = _versions()
