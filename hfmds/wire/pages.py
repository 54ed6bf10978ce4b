"""Lists in pages, as common.proto promises: bounded in number and in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

Entry = TypeVar("Entry", bound=Message)

_MAX_ENTRIES = 1000
_MAX_BYTES = 1 << 20


def page(
    entries: Iterable[Entry], page_size: int, token: str, key: Callable[[Entry], str]
) -> tuple[Sequence[Entry], str]:
    """The entries after the one whose key is the token, and the token of the page after them.

    A token whose entry is gone starts over: better twice than never.
    """
    remaining = list(entries)
    position = next((at for at, entry in enumerate(remaining) if key(entry) == token), -1)
    remaining = remaining[position + 1 :]
    taken = first_page(remaining, page_size)
    return taken, key(taken[-1]) if len(taken) < len(remaining) else ""


ASKED_FOR_A_PAGE = _MAX_ENTRIES + 1
"""How many entries behind the last one of the page before are enough for any page."""


def first_page_of(entries: Iterable[Entry], page_size: int) -> tuple[Sequence[Entry], bool]:
    """Of the entries behind the page before: those of the next one, and whether there are more."""
    remaining = list(entries)
    taken = first_page(remaining, page_size)
    return taken, len(taken) < len(remaining)


def first_page(entries: Sequence[Entry], page_size: int = 0) -> Sequence[Entry]:
    """As many entries as a message should carry, and at least one."""
    limit = min(page_size, _MAX_ENTRIES) if page_size > 0 else _MAX_ENTRIES
    size_bytes = 0
    for count, entry in enumerate(entries[:limit]):
        size_bytes += entry.ByteSize()
        if count and size_bytes > _MAX_BYTES:
            return entries[:count]
    return entries[:limit]
