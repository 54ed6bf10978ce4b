"""What one port bears of its callers; what is beyond it waits, is refused or is cut off.

Whoever can reach a port can connect to it, so the first limits hold before it is known who calls:
gRPC itself counts connections, and drops those that do not finish their handshake. Then calls are
counted, of all, of one network address and of one device, before a byte of their messages is read.
"""

from __future__ import annotations

from dataclasses import dataclass

BURST_SECONDS = 10.0
"""Of a rate, for how long so many may come at once: a fleet that wakes up together is honest."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The defaults are for a port with client certificates and ten thousand devices."""

    connections: int = 12_000  # at once; more are closed as soon as they are there
    connection_calls: int = 100  # at once on one connection; more wait, or are reset
    calls: int = 10_000  # at once
    calls_per_second: float = 5_000.0
    address_calls_per_second: float = 2_000.0  # many devices can be behind one address
    device_calls: int = 32  # at once
    device_calls_per_second: float = 100.0
    message_bytes: int = 4 * 1024 * 1024  # content moves in chunks of 1 MiB
    metadata_bytes: int = 8 * 1024
    handshake_seconds: float = 20.0  # TLS, and the first frames of HTTP/2
    message_seconds: float = 120.0  # for one message, from the first wait for it to its last byte
    requests_seconds: float = 1_800.0  # for all messages that one caller sends in one call

    def options(self, connections: int) -> tuple[tuple[str, int], ...]:
        """Of these limits, those that gRPC enforces; `connections` is what the system allows."""
        return (
            ("grpc.max_allowed_incoming_connections", min(self.connections, connections)),
            ("grpc.max_concurrent_streams", self.connection_calls),
            ("grpc.server_handshake_timeout_ms", int(1000 * self.handshake_seconds)),
            ("grpc.max_receive_message_length", self.message_bytes),
            ("grpc.max_metadata_size", self.metadata_bytes),
            ("grpc.absolute_max_metadata_size", 2 * self.metadata_bytes),
            # Above a thousand calls that nobody has looked at yet, gRPC would cancel some without
            # a word. They are ours to refuse, since we say when to come back.
            ("grpc.server.max_pending_requests", self.calls),
            ("grpc.server.max_pending_requests_hard_limit", self.calls),
        )
