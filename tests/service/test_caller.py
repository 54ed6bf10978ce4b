"""Who made a call, as a log remembers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import grpc
import pytest

from hfmds.service.caller import caller


class Context:
    """As much of a call as is looked at."""

    def __init__(self, peer: str, identity: Mapping[str, list[bytes]] | None = None) -> None:
        self._peer = peer
        self._identity = identity or {}

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> Mapping[str, Any]:
        return self._identity


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (Context("ipv4:10.0.0.7:41234"), "ipv4:10.0.0.7"),
        (Context("ipv6:%5B::1%5D:41234"), "ipv6:[::1]"),
        (Context("nobody"), "unknown"),
        (
            Context(
                "ipv4:10.0.0.7:41234", {"peer_spiffe_id": [b"spiffe://hfmds/admin/owner/olga"]}
            ),
            "admin/owner olga",
        ),
        (Context("ipv4:10.0.0.7:41234", {"peer_spiffe_id": [b"spiffe://else/x"]}), "ipv4:10.0.0.7"),
    ],
)
def test_a_name_if_there_is_one_else_the_address_without_the_port(
    context: Context, expected: str
) -> None:
    assert caller(cast(grpc.aio.ServicerContext, context)) == expected
