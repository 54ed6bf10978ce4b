"""HTTP/2 by hand, for calls and answers that a library would not send."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

from hfmds.service.process.address import split_address

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4
_TAKEN = 1  # of settings


def connected(address: str) -> socket.socket:
    """Open a plain connection. Reading from it fails after ten seconds."""
    return socket.create_connection(split_address(address), timeout=10)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other side closes the connection; False if it only stays silent."""
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


async def answer_as_web_server(
    status: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer each call with this HTTP status, and without gRPC metadata."""
    await reader.readexactly(len(PREFACE))
    writer.write(settings())
    with suppress(asyncio.IncompleteReadError):  # the caller is gone
        while True:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3]))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:])
            if kind == _SETTINGS and not flags & _TAKEN:
                writer.write(_frame(_SETTINGS, _TAKEN, 0, b""))
            if kind == _HEADERS:
                header = b"\x08\x03" + status.encode()  # :status, the eighth of HPACK's names
                writer.write(_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, header))
    writer.close()


def settings() -> bytes:
    return _frame(_SETTINGS, 0, 0, b"")


def request(path: str) -> bytes:
    """Return the headers of a gRPC call as stream 1."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "tester",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(
        b"\x00" + _text(name) + _text(value)  # literal, not indexed
        for name, value in headers.items()
    )
    return _frame(_HEADERS, _END_HEADERS, 1, block)


def data(content: bytes) -> bytes:
    return _frame(_DATA, 0, 1, content)


def message_start(length: int) -> bytes:
    """Return the gRPC prefix of a message of so many bytes."""
    return struct.pack(">BI", 0, length)


def _text(value: str) -> bytes:
    assert len(value) < 127
    return bytes([len(value)]) + value.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload
