"""Extracts messages from recorded HTTP/2 bytes, in which frames cut them anywhere."""

from __future__ import annotations

from collections.abc import Iterator

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEADER_BYTES = 9
_DATA = 0  # the type of frames that carry messages


def streams(heard: bytes) -> Iterator[bytes]:
    """Return the data of each stream of a connection."""
    assert heard.startswith(_PREFACE)
    found: dict[int, bytearray] = {}
    at = len(_PREFACE)
    while at + _FRAME_HEADER_BYTES <= len(heard):
        size, kind = int.from_bytes(heard[at : at + 3]), heard[at + 3]
        stream = int.from_bytes(heard[at + 5 : at + 9])
        at += _FRAME_HEADER_BYTES
        if kind == _DATA:
            found.setdefault(stream, bytearray()).extend(heard[at : at + size])
        at += size
    return (bytes(data) for data in found.values())
