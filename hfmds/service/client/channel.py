"""Calls to other programs of the project: channels, deadlines, retries.

A channel retries a call that found no server, quickly and a few times. The caller bridges longer
absences, with a `Backoff`. Both may repeat a call that the server carried out. This is safe: every
call that changes something carries an idempotency key.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import grpc

from hfmds.service.client.peer import Peer
from hfmds.service.monitoring.tracing import call_metadata
from hfmds.service.process.address import grpc_target, is_loopback, split_addresses
from hfmds.service.status import error_from

__all__ = ["Backoff", "Channel", "Peer", "call", "open_channel", "translating"]

R = TypeVar("R")

Channel: TypeAlias = grpc.aio.Channel

# gRPC's retry of a client stream can abort the process (github.com/grpc/grpc/issues/40283). The
# callers of these methods repeat them anyway.
_UPLOADS = [
    {"service": "hfmds.v1.CoordinatorService", "method": "SubmitUpdate"},
    {"service": "hfmds.v1.SynthesisStoreService", "method": "PutBatch"},
]

_SERVICE_CONFIG = json.dumps(
    {
        # A fleet spreads over several addresses, and leaves a lost one for another.
        "loadBalancingConfig": [{"pick_first": {"shuffleAddressList": True}}],
        "methodConfig": [
            {"name": _UPLOADS},
            {
                "name": [{}],  # every other method of every service
                "retryPolicy": {
                    "maxAttempts": 3,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 3,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            },
        ],
    }
)

_OPTIONS = (
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    # Pings keep a NAT's mapping alive while a call waits, and notice a dead link in 40 s. They stop
    # between calls, so that the radio of a training device can sleep.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),  # no limit, because a waiting call sends no data
    # The default grows to two minutes, which is too long after a server comes back.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.service_config", _SERVICE_CONFIG),
)


def open_channel(peer: Peer) -> grpc.aio.Channel:
    """Open a channel, which connects at the first call. Await its `close()` at the end."""
    local = all(is_loopback(host) for host, _ in split_addresses(peer.address))
    # A proxy named in the environment cannot reach this machine's loopback.
    proxy = ("grpc.enable_http_proxy", 0 if local else 1)
    target, options = grpc_target(peer.address), (*_OPTIONS, proxy)
    if peer.tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, peer.tls.channel_credentials(), options=options)


@contextmanager
def translating(peer: Peer) -> Iterator[None]:
    """Around calls to the peer: turn their failures into `hfmds.errors`."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_from(error, peer) from error


async def call(
    peer: Peer, method: Callable[..., Awaitable[R]], request: object, *, timeout_seconds: float
) -> R:
    """Make one call: `await call(peer, stub.CheckIn, request, timeout_seconds=10)`."""
    with translating(peer):
        return await method(request, timeout=timeout_seconds, metadata=call_metadata())


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waits between tries."""

    first_seconds: float = 0.5
    max_seconds: float = 30.0
    factor: float = 2.0

    def ceiling(self, failures: int) -> float:
        """Return the longest wait after so many failures in a row (1 or more)."""
        # The bound of the exponent keeps a week of failures from an overflow.
        return min(self.max_seconds, self.first_seconds * self.factor ** min(failures - 1, 64))
