"""Connections to the web page that do not speak proper HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hfmds.service.process.address import split_address
from hfmds.service.security.identity import Identity, Kind
from tests.coordinator.web.web_bench import WebBench, web_bench
from tests.support.fleet_certificates import FleetCertificates


class Stranger:
    """A connection that sends text without HTTP rules."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def at(cls, page: WebBench) -> Stranger:
        host, port = split_address(page.server.address.partition("://")[2])
        return cls(*await asyncio.open_connection(host, port))

    async def send(self, text: str) -> None:
        self._writer.write(text.encode())
        await self._writer.drain()

    async def receive_all(self) -> str:
        """Return everything until the server hangs up."""
        try:
            return (await self._reader.read()).decode(errors="replace")
        except ConnectionResetError:
            return ""


REQUEST = "GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def test_incomplete_requests_are_disconnected(tmp_path: Path) -> None:
    async with web_bench(tmp_path, idle_seconds=0.1) as page:
        silent, slow, again = [await Stranger.at(page) for _ in range(3)]
        await slow.send("GET / HTTP/1.1\r\nHost: loc")
        await again.send(REQUEST + "GET / HTTP/1.1\r\nHo")
        assert await silent.receive_all() == ""
        assert await slow.receive_all() == ""
        assert (await again.receive_all()).startswith("HTTP/1.1 200 OK")


async def test_an_https_page_does_not_answer_plain_http(tmp_path: Path) -> None:
    server = FleetCertificates.create(tmp_path).of(Identity(Kind.SERVICE, "coordinator"))
    async with web_bench(tmp_path, tls=server) as page:
        plain = await Stranger.at(page)
        await plain.send(REQUEST)
        assert "200" not in await plain.receive_all()


@pytest.mark.parametrize(
    "header",
    [
        f"X: {'a' * 9000}\r\n",
        "X: a\r\n" * 100,
        "Authorization: Bearer aaaa\x00\r\n",
    ],
    ids=["large", "many", "broken"],
)
async def test_malformed_requests_are_refused_and_their_tokens_stay_out_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, header: str
) -> None:
    caplog.set_level("DEBUG")
    async with web_bench(tmp_path) as page:
        stranger = await Stranger.at(page)
        await stranger.send(REQUEST.replace("\r\n\r\n", f"\r\n{header}\r\n"))
        assert (await stranger.receive_all()).startswith("HTTP/1.0 400 Bad Request")
    assert "aaaa" not in caplog.text
