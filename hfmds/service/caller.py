"""Who makes a call, as far as it can be known, for logs that outlive it."""

from __future__ import annotations

from urllib.parse import unquote

import grpc

from hfmds.service.identity import identity_of


def caller(context: grpc.aio.ServicerContext) -> str:
    """Who the caller is by its certificate; without one, the address the call came from."""
    identity = identity_of(context)
    if identity is not None:
        return str(identity)
    # "ipv4:10.0.0.7:41234", "ipv6:%5B::1%5D:41234": the port says nothing of who it was.
    return unquote(context.peer()).rpartition(":")[0] or "unknown"
