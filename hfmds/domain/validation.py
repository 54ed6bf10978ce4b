"""Refusing a setting that is out of its range, by its full name. Knows no settings."""

from __future__ import annotations

import math
from collections.abc import Collection

from hfmds.errors import InvalidInput


def require(condition: bool, message: str) -> None:
    """Raise InvalidInput with the message unless the condition holds."""
    if not condition:
        raise InvalidInput(message)


def require_range(name: str, value: float, in_range: bool, rule: str) -> None:
    """Refuse a setting out of its range, or not a number."""
    require(in_range and math.isfinite(value), f"{name} is {value}; it must be {rule}")


def require_at_least(least: int, **settings: float) -> None:
    """Refuse any of these settings below `least`; `__` in a name stands for its dot."""
    for name, value in settings.items():
        require_range(name.replace("__", "."), value, value >= least, f"at least {least}")


def require_above_zero(**settings: float) -> None:
    """Refuse any of these settings that is not above 0; `__` in a name stands for its dot."""
    for name, value in settings.items():
        require_range(name.replace("__", "."), value, value > 0, "above 0")


def require_one_of(name: str, value: str, known: Collection[str]) -> None:
    """Refuse a choice that does not exist."""
    require(value in known, f"{name} is {value!r}; it must be one of {', '.join(known)}")
