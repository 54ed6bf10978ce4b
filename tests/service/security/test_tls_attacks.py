"""A server gives nothing to attackers on the network or with a worthless certificate.

The tests send bytes by hand where gRPC's client would refuse. Revoked certificates are in
tests/integration/test_membership.py, expired and foreign ones in test_tls.py.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hfmds.errors import Unavailable
from hfmds.pki.authority import Authority
from hfmds.service.process.address import split_address
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.tls import TlsFiles
from tests.service.loopback import Running, running
from tests.service.raw_http2 import PREFACE, connected, is_closed, settings
from tests.service.security.test_tls import PROBE, ask, unary
from tests.support.fleet_certificates import DAY, FleetCertificates


async def serving(fleet: FleetCertificates, visit: Callable[[Running], Any]) -> Any:
    """Run a server with TLS, and a blocking visitor in a thread."""
    async with running(tls=fleet.of(Identity(Kind.SERVICE, "tester")), access=PROBE) as it:
        return await asyncio.to_thread(visit, it)


def context(files: TlsFiles) -> ssl.SSLContext:
    """Make a TLS context like that of gRPC's client."""
    made = ssl.create_default_context(cafile=str(files.authority))
    made.load_cert_chain(files.certificate, files.key)
    made.set_alpn_protocols(["h2"])
    return made


def spoken(it: Running, made: ssl.SSLContext) -> bytes:
    """Return the server's first bytes of HTTP/2; none if it hangs up."""
    host, port = split_address(it.server.address)
    with (
        suppress(ssl.SSLError, ConnectionError),
        socket.create_connection((host, port), timeout=30) as plain,
        made.wrap_socket(plain, server_hostname=host) as connection,
    ):
        connection.sendall(PREFACE + settings())
        return connection.recv(9)
    return b""


async def test_a_client_as_ours_is_spoken_to(fleet: FleetCertificates) -> None:
    """Without this, the tests below would prove nothing."""
    olga = fleet.of(Identity(Kind.OPERATOR, "olga"))
    spoken_bytes = await serving(fleet, lambda it: spoken(it, context(olga)))
    assert spoken_bytes[3:4] == b"\x04"  # its settings


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_old_versions_of_tls_are_not_spoken(
    fleet: FleetCertificates, version: ssl.TLSVersion
) -> None:
    old = context(fleet.of(Identity(Kind.OPERATOR, "olga")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = old.maximum_version = version
    old.set_ciphers("ALL:@SECLEVEL=0")
    assert await serving(fleet, lambda it: spoken(it, old)) == b""


@pytest.mark.parametrize("ciphers", ["AES128-SHA", "ECDHE-ECDSA-AES128-SHA", "NULL"])
async def test_weak_ciphers_are_not_spoken(fleet: FleetCertificates, ciphers: str) -> None:
    weak = context(fleet.of(Identity(Kind.OPERATOR, "olga")))
    weak.maximum_version = ssl.TLSVersion.TLSv1_2
    weak.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    assert await serving(fleet, lambda it: spoken(it, weak)) == b""


@pytest.mark.parametrize("protocols", [[], ["http/1.1"]])
async def test_nothing_but_http2_is_agreed_on(
    fleet: FleetCertificates, protocols: list[str]
) -> None:
    other = ssl.create_default_context()
    files = fleet.of(Identity(Kind.OPERATOR, "olga"))
    other.load_verify_locations(files.authority)
    other.load_cert_chain(files.certificate, files.key)
    if protocols:
        other.set_alpn_protocols(protocols)
    assert await serving(fleet, lambda it: spoken(it, other)) == b""


async def test_plain_text_to_a_port_with_tls_is_hung_up_on(fleet: FleetCertificates) -> None:
    def visit(it: Running) -> bool:
        with connected(it.server.address) as plain:
            plain.sendall(PREFACE + settings())
            return is_closed(plain)

    assert await serving(fleet, visit)


async def test_a_conversation_cannot_be_played_again(fleet: FleetCertificates) -> None:
    made = context(fleet.of(Identity(Kind.OPERATOR, "olga")))

    def visit(it: Running) -> bool:
        said = said_in_a_conversation(it, made)
        with connected(it.server.address) as again:
            for data in said:
                with suppress(ConnectionError):
                    again.sendall(data)
            return is_closed(again)

    assert await serving(fleet, visit)


def said_in_a_conversation(it: Running, made: ssl.SSLContext) -> list[bytes]:
    """Record the bytes that a client sends, as an attacker on the network sees them."""
    host, port = split_address(it.server.address)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    talk = made.wrap_bio(incoming, outgoing, server_hostname=host)
    said: list[bytes] = []
    with socket.create_connection((host, port), timeout=30) as connection:

        def until_done(step: Callable[[], Any]) -> Any:
            while True:
                with suppress(ssl.SSLWantReadError):
                    return step()
                if data := outgoing.read():
                    said.append(data)
                    connection.sendall(data)
                incoming.write(connection.recv(65536))

        until_done(talk.do_handshake)
        talk.write(PREFACE + settings())
        assert until_done(lambda: talk.read(9))[3:4] == b"\x04"  # the server's settings
    return said


async def test_a_device_cannot_make_certificates(fleet: FleetCertificates) -> None:
    server, now = fleet.of(Identity(Kind.SERVICE, "tester")), datetime.now(UTC)
    device = fleet.authority.pair(Identity(Kind.DEVICE, "camera"), now, DAY)
    made = Authority(device).pair(Identity(Kind.OPERATOR, "mallory"), now, timedelta(hours=1))
    chained = replace(made, certificate=made.certificate + device.certificate)
    with pytest.raises(Unavailable):
        await ask(server, fleet.files("mallory", chained), unary)


async def test_a_certificate_that_is_not_good_yet_is_not_good(fleet: FleetCertificates) -> None:
    server = fleet.of(Identity(Kind.SERVICE, "tester"))
    early = fleet.of(Identity(Kind.OPERATOR, "olga"), now=datetime.now(UTC) + 3 * DAY)
    with pytest.raises(Unavailable):
        await ask(server, early, unary)
