"""HTTPS with the certificate of the coordinator; who has a certificate of the fleet may show it.

As at the gRPC port, files that were replaced count from the next connection on, and the old ones
stay while the new ones cannot be used.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable

from hfmds.errors import ConfigurationError
from hfmds.service.limits.log_throttle import Seldom
from hfmds.service.security.tls import SAY_EVERY_SECONDS, TlsFiles

log = logging.getLogger(__name__)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """For a server that asks its callers for a certificate, and takes those without."""
    context = _context(files)
    context.sni_callback = _rotation(files, context)
    return context


def _rotation(
    files: TlsFiles, first: ssl.SSLContext
) -> Callable[[ssl.SSLSocket | ssl.SSLObject, str | None, ssl.SSLContext], None]:
    """Called in every handshake, also where the caller names no server."""
    known, current = files.changed_at(), first
    seldom = Seldom(SAY_EVERY_SECONDS)

    def rotate(connection: ssl.SSLSocket | ssl.SSLObject, *_: object) -> None:
        nonlocal known, current
        try:
            found = files.changed_at()
            if found != known:
                known, current = found, _context(files)
        except (OSError, ConfigurationError) as error:
            if seldom.times("", time.monotonic()):  # whoever connects makes this happen
                log.warning("the web page keeps its certificate: %s", error)
        connection.context = current

    return rotate


def _context(files: TlsFiles) -> ssl.SSLContext:
    files.read()  # says what is wrong with them
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    # A resumed session would skip the look at the certificate, which may be good no more.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context
