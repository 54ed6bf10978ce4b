"""Notices that a program's certificate was replaced, so that it shows the new one when it calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from hfmds.errors import ConfigurationError
from hfmds.service.security.tls import TlsFiles

log = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 30.0


class Client(Protocol):
    """Who calls a server."""

    async def reopen(self) -> None:
        """Make further calls with the certificate that is there by now."""


@asynccontextmanager
async def following_rotation(files: TlsFiles | None, *clients: Client) -> AsyncIterator[None]:
    """Inside, the clients call with the files' certificate as it is replaced."""
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
    """Reopen the clients whenever the files have changed and can be read, for ever.

    Files are replaced one after the other: in between, key and certificate may not fit.
    """
    known = files.changed_at()
    while True:
        await sleep(_LOOK_EVERY_SECONDS)
        try:
            now = files.changed_at()
            if now == known:
                continue
            files.read()
        except (OSError, ConfigurationError) as error:
            log.warning("the TLS files cannot be read anew: %s", error)
            continue
        known = now
        log.info("calls show the new certificate", extra={"certificate": str(files.certificate)})
        await asyncio.gather(*(reopen(client, sleep) for client in clients))


async def reopen(client: Client, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Open a client anew. While that fails its old channel stays, and it is tried again."""
    while True:
        try:
            return await client.reopen()
        except (OSError, ConfigurationError) as error:
            log.warning("the new certificate cannot be shown yet, trying again: %s", error)
        except Exception:  # whoever follows must not end: the old certificate will run out
            log.exception("the new certificate cannot be shown yet, trying again")
        await sleep(_LOOK_EVERY_SECONDS)
