"""The name of a piece of content: its SHA-256 and its size.

Weights, synthetic batches and shards are moved, stored and cached under their digest. So a
retry is recognised, a cache never goes stale, and an altered byte is noticed.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from hfmds.errors import InvalidInput

_HEX_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """The SHA-256 of content in lower-case hex, and the number of its bytes."""

    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        # The hex form becomes a file name: nothing but hex digits may pass.
        if not _HEX_SHA256.fullmatch(self.sha256):
            raise InvalidInput(f"digest {self.sha256[:80]!r} is not 64 lower-case hex digits")
        if self.size_bytes < 0:
            raise InvalidInput(f"digest {self.sha256[:12]}: size {self.size_bytes} is negative")

    def __str__(self) -> str:
        return f"{self.sha256[:12]}/{self.size_bytes}"


def digest_of(data: bytes | memoryview) -> Digest:
    """Return the digest of bytes in memory."""
    return Digest(hashlib.sha256(data).hexdigest(), len(data))


def digest_of_file(path: Path) -> Digest:
    """Return the digest of a file, which is read in pieces."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return Digest(sha256, file.tell())
