"""The states of a pool and the transitions between them.

docs/store.md draws them. A test compares the picture with this table.
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
    """Return the error for a device that puts a batch into a pool that is not open."""
    match state:
        case PoolState.SEALED:
            return TooLate(f"pool {pool_id} is sealed; check in for new work")
        case PoolState.HALTED:
            return NotAllowed(f"pool {pool_id} is halted: {reason}")
        case _:
            return TooLate(f"pool {pool_id} is {state.value}: {reason}; check in for new work")
