"""Who may call the store's methods is what their contract says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hfmds.service.security.access import DEVICE, OPERATOR, OWNER, SERVICE, VIEWER
from synthesis_store.api.store_service import ACCESS

CONTRACT = Path(__file__).resolve().parents[2] / "protos/hfmds/v1/synthesis_store.proto"
KINDS = {
    "device": DEVICE,
    "coordinator": SERVICE,
    "viewer": VIEWER,
    "operator": OPERATOR,
    "owner": OWNER,
}


def said_callers(method: str) -> list[str]:
    """The kinds of callers that the comment of a method names."""
    comment = re.search(rf"((?: *//.*\n)+) *rpc {method}\(", CONTRACT.read_text())
    assert comment
    text = " ".join(line.strip(" /") for line in comment[1].splitlines())
    said = re.search(r"Caller: ([^.]*)", text)
    assert said, f"{method} does not say who calls it"
    return [word for word in re.findall(r"\w+", said[1]) if word in KINDS]


@pytest.mark.parametrize("method", ACCESS)
def test_those_may_call_who_are_said_to(method: str) -> None:
    callers = (KINDS[word] for word in said_callers(method))
    assert frozenset().union(*callers) == ACCESS[method]
