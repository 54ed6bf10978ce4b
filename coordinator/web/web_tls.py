"""HTTPS for the web page, with the coordinator's certificate.

A browser may show a certificate of the fleet. As at the gRPC port, replaced files count from the
next connection on.
"""

from __future__ import annotations

import ssl

from hfmds.service.security.tls import Rotation, TlsFiles


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Make the context of a server that asks for a certificate, and also admits callers without."""
    rotation = Rotation(files, lambda: _context(files))

    def rotate(connection: ssl.SSLSocket | ssl.SSLObject, *_: object) -> None:
        rotation.reload()
        connection.context = rotation.current

    # Python calls this in every handshake, even if the client names no server.
    context = rotation.current
    context.sni_callback = rotate
    return context


def _context(files: TlsFiles) -> ssl.SSLContext:
    files.read()  # raises ConfigurationError with the cause
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    # A resumed session would skip the check of the certificate, which may have expired.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context
