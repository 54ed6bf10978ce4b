"""Chooses the classes that a picture of a snapshot shows."""

from __future__ import annotations

from collections.abc import Sequence

from hfmds.domain.pools import Snapshot
from hfmds.errors import ConfigurationError, NotFound

MOST_ROWS = 100  # a picture of more is illegible


def rows_of(snapshot: Snapshot, asked: Sequence[int] | None) -> list[int]:
    """Return the classes to draw: the requested ones, or all with images."""
    histogram = snapshot.class_histogram
    for number in asked or ():
        if not 0 <= number < len(histogram):
            raise ConfigurationError(
                f"the snapshot has no class {number}; its classes are 0 to {len(histogram) - 1}"
            )
    there = [c for c in sorted(set(asked or range(len(histogram)))) if histogram[c]]
    if not there:
        raise NotFound(f"snapshot {snapshot.snapshot_id} has no image of these classes")
    if len(there) > MOST_ROWS:
        raise ConfigurationError(
            f"{len(there)} classes do not fit in one picture; name up to {MOST_ROWS} with --class"
        )
    return there
