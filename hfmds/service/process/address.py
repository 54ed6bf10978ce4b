"""Network addresses as people write them: `host:port`, with brackets around an IPv6 host."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

from hfmds.errors import ConfigurationError, InvalidInput


def split_address(address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of `host:port`."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidInput("host:port, with brackets around an IPv6 host: [::1]:7401")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidInput("host:port with a port from 0 to 65535")
    return host, int(port)


def split_addresses(addresses: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of one `host:port`, or of several with commas between them.

    Several must be IP addresses of one version. A name can stand for several addresses by itself,
    and gRPC would have to look up several names again and again.
    """
    places = [split_address(address) for address in addresses.split(",")]
    if len(places) > 1 and len({_ip_version(host) for host, _ in places}) > 1:
        raise InvalidInput("several host:port, all IPv4 or all IPv6, or one name for all")
    return places


def grpc_target(addresses: str) -> str:
    """Return the target for gRPC."""
    places = split_addresses(addresses)
    if len(places) == 1:
        return addresses
    return f"ipv{_ip_version(places[0][0])}:{addresses}"


def _ip_version(host: str) -> int:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        raise InvalidInput(
            f"several host:port must be IP addresses, and {host!r} is a name; use one name for all "
            f"of them"
        ) from None


def join_address(host: str, port: int) -> str:
    """Join what `split_address` splits."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether the host is the loopback of this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bound_socket(address: str, setting: str) -> socket.socket:
    """Bind a TCP socket to the address; ConfigurationError, naming `setting`, if that fails."""
    host, port = split_address(address)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            # A restarted server takes its port back at once. A live listener still refuses.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(target)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise _bind_failure(host, port, setting, error) from error
    return bound


def _bind_failure(host: str, port: int, setting: str, error: OSError) -> ConfigurationError:
    if error.errno == errno.EADDRINUSE:
        return ConfigurationError(
            f"port {port} on {host} is in use; stop the other process or set {setting}"
        )
    # A failed name lookup has error numbers of its own, and its own text.
    reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
    return ConfigurationError(
        f"cannot listen on {join_address(host, port)}: {reason}; set {setting} to an address "
        f"of this machine"
    )
