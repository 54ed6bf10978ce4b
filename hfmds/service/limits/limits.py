"""The limits of one port. A call beyond them waits, or the server refuses or cuts it.

The first limits hold before the server knows the caller: gRPC counts connections, drops slow
handshakes, and refuses large messages and metadata. `throttle.py` counts calls.
"""

from __future__ import annotations

from dataclasses import dataclass

BURST_SECONDS = 10.0
"""How long a caller may exceed its rate: a fleet that wakes up together is honest."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The defaults suit a port with client certificates and ten thousand devices."""

    connections: int = 12_000  # at once; gRPC closes more at once
    connection_calls: int = 100  # at once on one connection; more wait
    calls: int = 10_000  # at once
    calls_per_second: float = 5_000.0
    device_calls: int = 32  # at once
    device_calls_per_second: float = 100.0
    message_bytes: int = 4 * 1024 * 1024  # content moves in chunks of 1 MiB
    metadata_bytes: int = 8 * 1024
    handshake_seconds: float = 20.0  # TLS, and the first frames of HTTP/2
    message_seconds: float = 120.0  # for each message of a stream, in either direction
    requests_seconds: float = 1_800.0  # for all messages that a caller sends in one call

    def options(self, connections: int) -> tuple[tuple[str, int], ...]:
        """Return the options with which gRPC enforces its part.

        `connections` is the number that the operating system allows.
        """
        return (
            ("grpc.max_allowed_incoming_connections", min(self.connections, connections)),
            ("grpc.max_concurrent_streams", self.connection_calls),
            ("grpc.server_handshake_timeout_ms", int(1000 * self.handshake_seconds)),
            ("grpc.max_receive_message_length", self.message_bytes),
            ("grpc.max_metadata_size", self.metadata_bytes),
            ("grpc.absolute_max_metadata_size", 2 * self.metadata_bytes),
            # gRPC would silently cancel calls above a thousand that wait for a handler. Our
            # throttle refuses them with a retry time instead.
            ("grpc.server.max_pending_requests", self.calls),
            ("grpc.server.max_pending_requests_hard_limit", self.calls),
        )
