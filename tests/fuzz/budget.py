"""The number of inputs for each property."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("FUZZ_TIMES", "1"))
"""How many times as many inputs as the suite tries; above 1, failures are kept for later."""


def tried(examples: int) -> settings:
    """Return the settings of a hypothesis property or state machine.

    tests/conftest.py lets the commit choose the inputs. A failure prints a decorator that repeats
    its input.
    """
    return settings(
        max_examples=examples * TIMES,
        database=None if TIMES == 1 else settings.default.database,
        print_blob=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
