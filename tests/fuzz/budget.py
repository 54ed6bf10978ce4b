"""How many inputs a property is tried with."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("FUZZ_TIMES", "1"))
"""1: as in the suite, always the same inputs; more: so many times as many, other ones each time."""


def tried(examples: int) -> settings:
    """Decorates a property that hypothesis tries, or is the settings of a state machine."""
    return settings(
        max_examples=examples * TIMES,
        derandomize=TIMES == 1,
        database=None if TIMES == 1 else settings.default.database,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
