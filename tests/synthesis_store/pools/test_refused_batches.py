from __future__ import annotations

import pytest

from hfmds.errors import Diverged, HfmdsError, LimitExceeded
from synthesis_store.pools.pool_records import PoolFull
from synthesis_store.pools.refused_batches import REFUSAL_REASONS, reason_of


class TooManyColours(LimitExceeded):
    """A cause that no table lists."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PoolFull(), "pool_full"),
        (LimitExceeded(), "limit"),
        (TooManyColours(), "limit"),
        (Diverged(), "malformed"),
        (HfmdsError(), "other"),
    ],
)
def test_an_error_counts_under_the_nearest_of_its_classes(error: HfmdsError, reason: str) -> None:
    assert reason_of(error) == reason
    assert reason in REFUSAL_REASONS
