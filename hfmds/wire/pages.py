"""Cuts lists into pages that are bounded in number and in bytes, as common.proto promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

Entry = TypeVar("Entry", bound=Message)

_MAX_ENTRIES = 1000
_MAX_BYTES = 1 << 20

ASKED_FOR_A_PAGE = _MAX_ENTRIES + 1
"""How many entries to read for any page: one more shows that there is a next page."""


def next_page(
    entries: Iterable[Entry], page_size: int, key: Callable[[Entry], str]
) -> tuple[Sequence[Entry], str]:
    """Return the first page of the entries behind the last page, and the next page's token.

    The token is the key of the page's last entry; it is empty on the last page.
    """
    page_entries, more = first_page_of(entries, page_size)
    return page_entries, key(page_entries[-1]) if more else ""


def page(
    entries: Iterable[Entry], page_size: int, token: str, key: Callable[[Entry], str]
) -> tuple[Sequence[Entry], str]:
    """Return the page behind the entry whose key is the token, and the next page's token.

    A token whose entry is gone starts over: an entry listed twice is better than one left out.
    """
    remaining = list(entries)
    position = next((at for at, entry in enumerate(remaining) if key(entry) == token), -1)
    return next_page(remaining[position + 1 :], page_size, key)


def first_page_of(entries: Iterable[Entry], page_size: int) -> tuple[Sequence[Entry], bool]:
    """Return the first page of the entries, and whether more follow."""
    remaining = list(entries)
    page_entries = first_page(remaining, page_size)
    return page_entries, len(page_entries) < len(remaining)


def first_page(entries: Sequence[Entry], page_size: int = 0) -> Sequence[Entry]:
    """Return as many entries as fit in a message, and at least one; 0: no size was given."""
    limit = min(page_size, _MAX_ENTRIES) if page_size > 0 else _MAX_ENTRIES
    size_bytes = 0
    for count, entry in enumerate(entries[:limit]):
        size_bytes += entry.ByteSize()
        if count and size_bytes > _MAX_BYTES:
            return entries[:count]
    return entries[:limit]
