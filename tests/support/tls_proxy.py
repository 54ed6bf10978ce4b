"""A TLS proxy for a PostgreSQL server without TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import closing, suppress

from hfmds.service.security.tls import TlsFiles


class TlsProxy:
    """Forwards TLS connections to a PostgreSQL server on another port.

    libpq asks for TLS by a message. The proxy closes a connection that does not ask.
    """

    _ASKED = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"

    def __init__(self, files: TlsFiles, port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        self._behind = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(caller,), daemon=True).start()

    def _pass_on(self, caller: socket.socket) -> None:
        with closing(caller), suppress(OSError):
            if caller.recv(8, socket.MSG_WAITALL) != self._ASKED:
                return
            caller.sendall(b"S")
            with (
                self._context.wrap_socket(caller, server_side=True) as inside,
                socket.create_connection(("127.0.0.1", self._behind)) as server,
            ):
                back = threading.Thread(target=_copy, args=(server, inside), daemon=True)
                back.start()
                _copy(inside, server)
                back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
