"""The status line at the bottom of a terminal; log lines pass above it."""

from __future__ import annotations

import logging
import threading
from typing import TextIO

_ERASE = "\r\x1b[K"


class StatusLine:
    """Shows text in place on a terminal, and nothing elsewhere. Thread-safe."""

    def __init__(self, stream: TextIO, *, wanted: bool = True) -> None:
        self._stream = stream
        self._shows = wanted and stream.isatty()
        self._shown = ""
        self._lock = threading.Lock()

    def show(self, text: str) -> None:
        """Replace the shown text."""
        with self._lock:
            if self._shows and text != self._shown:
                self._stream.write(_ERASE + text)
                self._stream.flush()
                self._shown = text

    def close(self) -> None:
        """Clear the line; it can be used again."""
        with self._lock:
            if self._shown:
                self._stream.write(_ERASE)
                self._stream.flush()
                self._shown = ""

    def make_way_for(self, handler: logging.Handler) -> None:
        """Clear the line before each record of the handler."""

        def clear(record: logging.LogRecord) -> bool:
            self.close()
            return True

        handler.addFilter(clear)


def describe_step(what: str, done: int, steps: int, seconds: float) -> str:
    """Describe how far a computation is, and how long it will take."""
    left_seconds = seconds / done * (steps - done) if done else 0.0
    remaining = f", about {_duration(left_seconds)} left" if done < steps else ""
    return f"{what}: step {done} of {steps} ({100 * done // steps} %){remaining}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
