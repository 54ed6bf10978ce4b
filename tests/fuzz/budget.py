"""The number of inputs for each property."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("FUZZ_TIMES", "1"))
"""1 tries the same inputs each time, as the suite does. n tries n times as many new inputs."""


def tried(examples: int) -> settings:
    """Return the settings of a hypothesis property or state machine."""
    return settings(
        max_examples=examples * TIMES,
        derandomize=TIMES == 1,
        database=None if TIMES == 1 else settings.default.database,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
