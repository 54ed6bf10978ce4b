"""Numbers as people read them: percent, decibel, sizes, times, and curves of one line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

_BARS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"

NOTHING = "-"
"""Stands where there is no number."""


def percent(share: float | None) -> str:
    """0.613 as "61.3 %"."""
    return NOTHING if share is None else f"{100 * share:.1f} %"


def decibel(value: float | None) -> str:
    """10.24 as "10.2 dB"."""
    return NOTHING if value is None else f"{value:.1f} dB"


def counted(number: int, one: str, several: str = "") -> str:
    """So many of something: "1 round", "3 rounds"; `several` where an "s" does not make it."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def size(size_bytes: int) -> str:
    """Bytes as "14.2 kB" or "3.5 MB", in powers of ten."""
    return f"{size_bytes / 1e3:.1f} kB" if size_bytes < 1e6 else f"{size_bytes / 1e6:.1f} MB"


def seconds(value: float) -> str:
    """A duration: "8.3 s", "2 min 5 s", "3 h 20 min" or "29 days 23 h"."""
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 2 * 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} days {whole % 86400 // 3600} h"


def ago(moment: datetime, now: datetime) -> str:
    """How long before `now`; clocks that disagree never give a negative time."""
    return f"{seconds(max(0.0, (now - moment).total_seconds()))} ago"


def sparkline(shares: Sequence[float], width: int = 24) -> str:
    """The last `width` values in [0, 1] as bars; the scale is fixed, so that curves compare."""
    last = len(_BARS) - 1
    return "".join(_BARS[round(min(max(s, 0.0), 1.0) * last)] for s in shares[-width:])


def bar(share: float, width: int = 40) -> str:
    """A share in [0, 1] of `width` characters, to an eighth of one; what is not 0 is seen."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(max(eighths, 1 if share > 0 else 0), 8)
    return (_EIGHTHS[-1] * full + _EIGHTHS[rest]).strip()
