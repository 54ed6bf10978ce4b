"""Reopens the clients of a program when somebody replaces the program's certificate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from hfmds.errors import ConfigurationError
from hfmds.service.security.tls import Rotation, TlsFiles

log = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 30.0


class Client(Protocol):
    """A client of a server."""

    async def reopen(self) -> None:
        """Make further calls with the certificate that is in the files now."""


@asynccontextmanager
async def following_rotation(files: TlsFiles | None, *clients: Client) -> AsyncIterator[None]:
    """Inside the block, let the clients follow the files."""
    if files is None:
        yield
        return
    following = asyncio.create_task(follow_rotation(files, clients, asyncio.sleep))
    try:
        yield
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def follow_rotation(
    files: TlsFiles, clients: tuple[Client, ...], sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Reopen the clients whenever the files change, for ever."""
    rotation = Rotation(files, files.read)
    while True:
        await sleep(_LOOK_EVERY_SECONDS)
        if rotation.reload():
            await asyncio.gather(*(reopen(client, sleep) for client in clients))


async def reopen(client: Client, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Open a client again. While that fails, its old channel stays, and this tries again."""
    while True:
        try:
            return await client.reopen()
        except (OSError, ConfigurationError) as error:
            log.warning("cannot show the new certificate yet, trying again: %s", error)
        except Exception:  # this loop must not end: the old certificate will expire
            log.exception("cannot show the new certificate yet, trying again")
        await sleep(_LOOK_EVERY_SECONDS)
