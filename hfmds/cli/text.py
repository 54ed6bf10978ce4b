"""Numbers as text for people: percent, decibel, sizes, times, and curves of one line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

_BARS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"

NOTHING = "-"
"""The text for a missing number."""


def percent(share: float | None) -> str:
    """Return 0.613 as "61.3 %"."""
    return NOTHING if share is None else f"{100 * share:.1f} %"


def decibel(value: float | None) -> str:
    """Return 10.24 as "10.2 dB"."""
    return NOTHING if value is None else f"{value:.1f} dB"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 round", "3 rounds". `plural` is for irregular nouns."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def size(size_bytes: int) -> str:
    """Return bytes as "14.2 kB" or "3.5 MB", in powers of ten."""
    return f"{size_bytes / 1e3:.1f} kB" if size_bytes < 1e6 else f"{size_bytes / 1e6:.1f} MB"


def seconds(value: float) -> str:
    """Return a duration: "8.3 s", "2 min 5 s", "3 h 20 min" or "29 days 23 h"."""
    if value < 60:
        return f"{value:.1f} s"
    total_seconds = round(value)
    if total_seconds < 3600:
        return f"{total_seconds // 60} min {total_seconds % 60} s"
    if total_seconds < 2 * 86400:
        return f"{total_seconds // 3600} h {total_seconds % 3600 // 60} min"
    return f"{total_seconds // 86400} days {total_seconds % 86400 // 3600} h"


def ago(moment: datetime, now: datetime) -> str:
    """Return the time before `now`; it is never negative, even if clocks disagree."""
    return f"{seconds(max(0.0, (now - moment).total_seconds()))} ago"


def sparkline(shares: Sequence[float], width: int = 24) -> str:
    """Return the last `width` values in [0, 1] as bars of one fixed scale."""
    last = len(_BARS) - 1
    return "".join(_BARS[round(min(max(s, 0.0), 1.0) * last)] for s in shares[-width:])


def bar(share: float, width: int = 40) -> str:
    """Return a share in [0, 1] as a bar of up to `width` characters; above 0 it is visible."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(max(eighths, 1 if share > 0 else 0), 8)
    return (_EIGHTHS[-1] * full + _EIGHTHS[rest]).strip()
