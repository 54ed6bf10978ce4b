"""Who has logged in to the web page. In memory: a restart ends it all.

A session is as good as its token: the token is looked up again at every request, so that one that
was revoked, or has run out, opens nothing any more.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

_MOST_SESSIONS = 1000


@dataclass(frozen=True, slots=True)
class _Session:
    token: str
    until: float


class Sessions:
    """Tokens by the name of a session, which only its browser knows. Not thread-safe."""

    def __init__(
        self, clock: Callable[[], float], life_seconds: float = 12 * 3600.0, most: int | None = None
    ) -> None:
        self.life_seconds = life_seconds
        self._clock = clock
        self._most = most or _MOST_SESSIONS
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()  # the oldest first

    def open(self, token: str) -> str:
        """Begin a session for who has shown a good token; its name. The oldest ones make room."""
        name = secrets.token_urlsafe(32)
        while len(self._sessions) >= self._most:
            self._sessions.popitem(last=False)
        self._sessions[_key(name)] = _Session(token, self._clock() + self.life_seconds)
        return name

    def token(self, name: str) -> str | None:
        """The token of a session; None if there is no such one, or not any more."""
        session = self._sessions.get(_key(name))
        if session and session.until <= self._clock():
            self.end(name)
            return None
        return session.token if session else None

    def end(self, name: str) -> None:
        """End a session, if it is there."""
        self._sessions.pop(_key(name), None)


def _key(name: str) -> bytes:
    """What sessions are found by: how long a search takes must not tell of the name itself."""
    return hashlib.sha256(name.encode(errors="surrogatepass")).digest()
