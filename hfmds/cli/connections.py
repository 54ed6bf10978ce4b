"""Connections of the commands to the services: addresses, and a client for one command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

import typer

from hfmds.cli.settings import CommandSettings
from hfmds.errors import ConfigurationError, InvalidInput
from hfmds.service.client.peer import Peer
from hfmds.service.process.address import split_addresses
from hfmds.service.process.settings import load_settings, missing_tls
from hfmds.wire.clients.admin_client import AdminClient
from hfmds.wire.clients.fleet_client import FleetClient
from hfmds.wire.clients.store_client import StoreClient

T = TypeVar("T")

COORDINATOR_SETTING = "HFMDS_COORDINATOR"
STORE_SETTING = "HFMDS_STORE"

DEFAULT_COORDINATOR = "127.0.0.1:7401"
DEFAULT_STORE = "127.0.0.1:7411"

CoordinatorOption = Annotated[
    str,
    typer.Option(
        "--coordinator",
        envvar=COORDINATOR_SETTING,
        metavar="HOST:PORT",
        help="Address of the coordinator, or several with IP addresses, separated by commas.",
    ),
]

StoreOption = Annotated[
    str,
    typer.Option(
        "--store", envvar=STORE_SETTING, metavar="HOST:PORT", help="Address of the synthesis store."
    ),
]


@asynccontextmanager
async def admin_client(address: str) -> AsyncIterator[AdminClient]:
    """Open a client of the coordinator for the time of the block."""
    client = AdminClient(_peer("coordinator", address, COORDINATOR_SETTING))
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def store_client(address: str) -> AsyncIterator[StoreClient]:
    """Open a client of the synthesis store for the time of the block."""
    if load_settings(CommandSettings).enrols:
        raise ConfigurationError(
            "the synthesis store takes no tokens; unset HFMDS_TOKEN and HFMDS_TOKEN_FILE, and set "
            "HFMDS_TLS_CERTIFICATE and HFMDS_TLS_KEY to an admin's (hfmds pki issue makes them)"
        )
    client = StoreClient(_peer("synthesis store", address, STORE_SETTING))
    try:
        yield client
    finally:
        await client.close()


def ask_coordinator(address: str, question: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Run a command's calls to the coordinator."""

    async def conversation() -> T:
        async with admin_client(address) as client:
            return await question(client)

    return asyncio.run(conversation())


def ask_fleet(address: str, question: Callable[[FleetClient], Awaitable[T]]) -> T:
    """Run a command's calls to the coordinator about members of the fleet."""

    async def conversation() -> T:
        client = FleetClient(_peer("coordinator", address, COORDINATOR_SETTING))
        try:
            return await question(client)
        finally:
            await client.close()

    return asyncio.run(conversation())


def ask_store(address: str, question: Callable[[StoreClient], Awaitable[T]]) -> T:
    """Run a command's calls to the synthesis store."""

    async def conversation() -> T:
        async with store_client(address) as client:
            return await question(client)

    return asyncio.run(conversation())


def _peer(name: str, address: str, setting: str) -> Peer:
    try:
        split_addresses(address)
    except InvalidInput as error:
        raise ConfigurationError(
            f"the address of the {name} is {address!r}; it must be {error}; set {setting}"
        ) from error
    settings = load_settings(CommandSettings)
    credentials = settings.credentials
    if credentials is None and not settings.insecure and (fault := missing_tls(setting, address)):
        raise ConfigurationError(fault)
    return Peer(name, address, setting, credentials)
