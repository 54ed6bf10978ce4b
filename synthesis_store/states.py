"""The states of a pool, and the only ways from one to the next.

docs/store.md draws them; a test holds the picture to this table.
"""

from __future__ import annotations

from collections.abc import Mapping

from hfmds.domain.pools import PoolState
from hfmds.errors import HfmdsError, NotAllowed, TooLate

POOL_TRANSITIONS: Mapping[PoolState, frozenset[PoolState]] = {
    PoolState.OPEN: frozenset({PoolState.SEALED, PoolState.HALTED, PoolState.ABANDONED}),
    PoolState.SEALED: frozenset(),
    PoolState.HALTED: frozenset(),
    PoolState.ABANDONED: frozenset(),
}


def refusal_of_batches(pool_id: str, state: PoolState, reason: str) -> HfmdsError:
    """The answer to a device that comes to a pool that is open no more."""
    match state:
        case PoolState.SEALED:
            return TooLate(f"pool {pool_id} is sealed; check in for new work")
        case PoolState.HALTED:
            return NotAllowed(f"pool {pool_id} is halted: {reason}")
        case _:
            return TooLate(f"pool {pool_id} is {state.value}: {reason}; check in for new work")
