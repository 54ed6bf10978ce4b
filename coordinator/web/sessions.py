"""Logged-in browsers of the web page. A restart of the coordinator ends all sessions.

A session is as good as its token. Every request looks the token up again, so a revoked or expired
token opens nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

from cachetools import TTLCache

LIFE_SECONDS = 12 * 3600.0
_MOST_SESSIONS = 1000


class Sessions:
    """Tokens by the name of a session, which only its browser knows. Use it from one thread."""

    def __init__(self, clock: Callable[[], float], most: int = _MOST_SESSIONS) -> None:
        """Keep at most so many sessions: the least recently used ones end first."""
        self._tokens: TTLCache[bytes, str] = TTLCache(most, LIFE_SECONDS, timer=clock)

    def open(self, token: str) -> str:
        """Begin a session for the holder of a good token; return the session's name."""
        name = secrets.token_urlsafe(32)
        self._tokens[_key(name)] = token
        return name

    def token(self, name: str) -> str | None:
        """Return the token of a session; None if the session ended or never existed."""
        token: str | None = self._tokens.get(_key(name))
        return token

    def end(self, name: str) -> None:
        """End a session, if it exists."""
        self._tokens.pop(_key(name), None)


def _key(name: str) -> bytes:
    """Hash the name, so that the duration of a search tells nothing about it."""
    return hashlib.sha256(name.encode(errors="surrogatepass")).digest()
