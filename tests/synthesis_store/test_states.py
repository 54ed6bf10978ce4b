"""The states of a pool: the picture in docs/ is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hfmds.domain.pools import PoolState
from hfmds.errors import HfmdsError, NotAllowed, TooLate
from synthesis_store.states import POOL_TRANSITIONS, refusal_of_batches

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "store.md"


def test_the_picture_has_the_edges_of_the_code_and_no_others() -> None:
    (block,) = re.findall(r"```mermaid\n(.*?)```", PICTURE.read_text(), re.DOTALL)
    drawn = set(re.findall(r"^ *([A-Z]+) --> ([A-Z]+)", block, re.MULTILINE))
    assert drawn == {
        (before.name, after.name) for before, steps in POOL_TRANSITIONS.items() for after in steps
    }
    assert list(POOL_TRANSITIONS) == list(PoolState)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (PoolState.SEALED, TooLate),
        (PoolState.HALTED, NotAllowed),
        (PoolState.ABANDONED, TooLate),
    ],
)
def test_the_refusal_of_an_ended_pool_says_why(state: PoolState, error: type[HfmdsError]) -> None:
    refusal = refusal_of_batches("pool-1", state, "because")
    assert type(refusal) is error
    assert f"pool-1 is {state.value}" in str(refusal)
    assert ("because" in str(refusal)) == (state is not PoolState.SEALED)
