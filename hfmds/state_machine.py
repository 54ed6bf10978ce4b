"""State machines as tables of the allowed steps."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from hfmds.errors import WrongState

State = TypeVar("State", bound=enum.Enum)


def require_transition(
    transitions: Mapping[State, frozenset[State]], current: State, wanted: State, what: str
) -> None:
    """Raise WrongState for a step that is not in the table. `what` names the thing."""
    if wanted not in transitions[current]:
        raise WrongState(f"{what} is {current.value}, so it cannot become {wanted.value}")
