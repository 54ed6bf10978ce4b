"""Whether storage answers, so that a process that has lost it can say so.

A look is cheap, and is taken in a thread of its own: it may hang for as long as it likes, and holds
up nobody. What is slow once is no trouble; what has not answered for long is, until it answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

log = logging.getLogger(__name__)

_LOOKS = 4  # within what is borne


class Watch:
    """Looks again and again at one thing; `look` raises when it is not well."""

    def __init__(
        self,
        name: str,
        look: Callable[[], None],
        patience_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """It is well to begin with."""
        self._name = name
        self._look = look
        self._patience_seconds = patience_seconds
        self._monotonic = monotonic
        self._answered_at = monotonic()
        self._is_well = True
        self._closed = threading.Event()

    def start(self) -> None:
        """Look from now on, until it is closed."""
        # A daemon: one that hangs must not keep the process from its end.
        threading.Thread(target=self._keep_looking, name=f"watch {self._name}", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def look(self) -> None:
        """Look once."""
        try:
            self._look()
        except Exception as error:  # noqa: BLE001  # whoever waits for it gets it
            if self._is_well:
                log.warning("%s does not answer: %s", self._name, error)
            self._is_well = False
        else:
            self._answered_at = self._monotonic()
            if not self._is_well:
                log.info("%s answers again", self._name)
            self._is_well = True

    def trouble(self) -> str | None:
        """What is wrong, for whoever asks; None: nothing, or nothing yet."""
        silent_seconds = self._monotonic() - self._answered_at
        if silent_seconds <= self._patience_seconds:
            return None
        return f"{self._name} has not answered for {silent_seconds:.0f} s; the log has more"

    def _keep_looking(self) -> None:
        while not self._closed.wait(self._patience_seconds / _LOOKS):
            self.look()


@contextmanager
def watching(
    looks: Mapping[str, Callable[[], None]],
    patience_seconds: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[], str | None]]:
    """Inside, these are looked at, each by its name; yields what tells the trouble of any."""
    watches = [Watch(name, look, patience_seconds, monotonic) for name, look in looks.items()]
    for watch in watches:
        watch.start()
    try:
        yield lambda: next(filter(None, (watch.trouble() for watch in watches)), None)
    finally:
        for watch in watches:
            watch.close()
