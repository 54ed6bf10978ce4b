"""Who makes a call, as far as it can be known, for logs that outlive it."""

from __future__ import annotations

from urllib.parse import unquote

import grpc


def caller(context: grpc.aio.ServicerContext) -> str:
    """The name in the caller's certificate; without one, the address the call came from."""
    names = context.auth_context().get("x509_common_name", ())
    if names:
        return bytes(names[0]).decode(errors="replace")
    # "ipv4:10.0.0.7:41234", "ipv6:%5B::1%5D:41234": the port says nothing of who it was.
    return unquote(context.peer()).rpartition(":")[0] or "unknown"
