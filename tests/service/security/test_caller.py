"""The name of a caller in logs."""

from __future__ import annotations

from contextvars import copy_context
from typing import cast

import grpc
import pytest

from hfmds.service.security.caller import Caller, caller, remember
from hfmds.service.security.identity import Identity, Kind


class Context:
    """The part of a call that names its caller."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer


@pytest.mark.parametrize(
    ("peer", "identity", "expected"),
    [
        ("ipv4:10.0.0.7:41234", None, "ipv4:10.0.0.7"),
        ("ipv6:%5B::1%5D:41234", None, "ipv6:[::1]"),
        ("nobody", None, "unknown"),
        ("ipv4:10.0.0.7:41234", Identity(Kind.OWNER, "olga"), "admin/owner olga"),
    ],
)
def test_a_name_if_there_is_one_else_the_address_without_the_port(
    peer: str, identity: Identity | None, expected: str
) -> None:
    def of_the_call() -> str:
        remember(Caller(identity))
        return caller(cast(grpc.aio.ServicerContext, Context(peer)))

    assert copy_context().run(of_the_call) == expected
