"""What strangers can use up of the web page: little."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.web.listener import Limits, Places
from hfmds.service.process.address import split_address
from hfmds.service.security.identity import Identity, Kind
from tests.coordinator.web.web_bench import WebBench, web_bench
from tests.support.fleet_certificates import FleetCertificates

PATIENT = Limits(idle_seconds=3600, life_seconds=3600, handshake_seconds=3600)


def look(
    folder: Path, limits: Limits, question: Callable[[WebBench], Awaitable[Any]], **options: Any
) -> None:
    async def conversation() -> None:
        async with asyncio.timeout(20), web_bench(folder, limits=limits, **options) as page:
            await question(page)

    asyncio.run(conversation())


class Stranger:
    """A connection of somebody who knows no HTTP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def at(cls, page: WebBench) -> Stranger:
        host, port = split_address(page.server.address.partition("://")[2])
        return cls(*await asyncio.open_connection(host, port))

    async def says(self, text: str) -> None:
        self.writer.write(text.encode())
        await self.writer.drain()

    async def hears(self) -> str:
        """All till the server hangs up."""
        try:
            return (await self._reader.read()).decode()
        except ConnectionResetError:
            return ""

    async def hears_line(self) -> str:
        return (await self._reader.readline()).decode().strip()


ASKS = "GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_one_address_has_few_connections_and_gets_them_back(tmp_path: Path) -> None:
    async def question(page: WebBench) -> None:
        first, second = await Stranger.at(page), await Stranger.at(page)
        for stranger in (first, second):
            await stranger.says(ASKS)
            assert await stranger.hears_line() == "HTTP/1.1 200 OK"
        third = await Stranger.at(page)
        assert await third.hears() == ""
        first.writer.close()
        while True:  # until the server has seen that it is gone
            again = await Stranger.at(page)
            await again.says(ASKS)
            if await again.hears_line() == "HTTP/1.1 200 OK":
                break

    look(tmp_path, replace(PATIENT, connections_per_address=2), question)


def test_a_network_of_ipv6_is_one_address() -> None:
    places = Places(Limits(connections=4, connections_per_address=2))
    assert [places.take(f"2001:db8::{n}") for n in range(3)] == [True, True, False]
    assert [places.take(f"10.0.0.{n}") for n in range(3)] == [True, True, False]
    places.free("2001:db8::7")
    assert [places.take(f"2001:db8::{n}") for n in range(3)] == [True, False, False]


def test_all_addresses_together_have_no_more_either(tmp_path: Path) -> None:
    async def question(page: WebBench) -> None:
        first = await Stranger.at(page)
        await first.says(ASKS)
        assert await first.hears_line() == "HTTP/1.1 200 OK"
        assert await (await Stranger.at(page)).hears() == ""

    look(tmp_path, replace(PATIENT, connections=1), question)


def test_who_does_not_come_to_the_point_is_left(tmp_path: Path) -> None:
    async def question(page: WebBench) -> None:
        silent, slow, again = [await Stranger.at(page) for _ in range(3)]
        await slow.says("GET / HTTP/1.1\r\nHost: loc")
        await again.says(ASKS + "GET / HTTP/1.1\r\nHo")
        assert await silent.hears() == ""
        assert await slow.hears() == ""
        assert (await again.hears()).startswith("HTTP/1.1 200 OK")

    look(tmp_path, replace(PATIENT, idle_seconds=0.1), question)


def test_every_connection_has_an_end(tmp_path: Path) -> None:
    async def question(page: WebBench) -> None:
        assert await (await Stranger.at(page)).hears() == ""

    look(tmp_path, replace(PATIENT, life_seconds=0.1), question)


def test_who_begins_no_handshake_is_left(tmp_path: Path) -> None:
    server = FleetCertificates.create(tmp_path).of(Identity(Kind.SERVICE, "coordinator"))

    async def question(page: WebBench) -> None:
        assert await (await Stranger.at(page)).hears() == ""
        plain = await Stranger.at(page)
        await plain.says(ASKS)
        assert "200" not in await plain.hears()

    look(tmp_path, replace(PATIENT, handshake_seconds=0.1), question, tls=server)


def test_what_is_no_request_or_too_large_is_refused_without_a_word_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")  # which may say that it was none, and not what it was

    async def question(page: WebBench) -> None:
        large, many = f"X: {'a' * 9000}\r\n", "X: a\r\n" * 100
        broken = "Authorization: Bearer aaaa\x00\r\n"
        headers = (large, many, broken)
        asks = [ASKS.replace("\r\n\r\n", f"\r\n{each}\r\n") for each in headers]
        for text in (*asks, "hello <b>\r\n\r\n"):
            stranger = await Stranger.at(page)
            await stranger.says(text)
            answer = await stranger.hears()
            assert answer.startswith("HTTP/1.0 400 Bad Request")
            assert answer.endswith("the request is malformed or too large\n")
            assert "\r\nServer: hfmds\r\n" in answer

    look(tmp_path, PATIENT, question)
    assert not [record for record in caplog.records if record.name.startswith("aiohttp")]
    assert "aaaa" not in caplog.text
