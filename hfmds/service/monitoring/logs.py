"""Logs with fields: one event per line on stderr, as JSON for machines or as text for people.

A record carries its own `extra` and the fields of the surrounding `log_context` (run, round,
device, task). The context follows asyncio tasks and `asyncio.to_thread`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_context: ContextVar[Mapping[str, object]] = ContextVar("log_context", default={})  # noqa: B039

_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@contextmanager
def log_context(**fields: object) -> Iterator[None]:
    """Add fields to every record inside the block. Inner fields win over outer fields."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def configure_logging(level: str, format: str, service: str) -> None:  # noqa: A002
    """Send all logs of this process to stderr, in the format "json" or "console"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service) if format == "json" else ConsoleFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC's core bypasses our formatter
    logging.getLogger("asyncio").setLevel(max(root.level, logging.INFO))  # selector chatter
    logging.getLogger("alembic").setLevel(max(root.level, logging.WARNING))  # we log upgrades


class JsonFormatter(logging.Formatter):
    """One JSON object per record: ts, level, service, logger, message, then the fields."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            **_fields(record),
            # After the fields, so that no field can pass for one of these.
            "ts": _utc(record, "%Y-%m-%dT%H:%M:%S") + "Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        order = ("ts", "level", "service", "logger", "message")
        return json.dumps({key: entry[key] for key in order} | entry, default=str)


class ConsoleFormatter(logging.Formatter):
    """Time, level, logger, message, then `name=value` fields; tracebacks below."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_shown(value)}" for name, value in _fields(record).items())
        line = (
            f"{_utc(record, '%H:%M:%S')} {record.levelname:<7} {record.name}: "
            f"{_on_one_line(record.getMessage())}{fields}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _fields(record: logging.LogRecord) -> dict[str, object]:
    extra = {key: value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES}
    return {**_context.get(), **extra}


def _utc(record: logging.LogRecord, form: str) -> str:
    return f"{time.strftime(form, time.gmtime(record.created))}.{int(record.msecs):03d}"


def _on_one_line(text: str) -> str:
    """Escape control characters: a peer must not forge a log line or move the cursor."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _shown(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and text and not any(c in text for c in " \"'=")
    return text if plain else json.dumps(text, ensure_ascii=False)
