"""TLS between the programs: each shows a certificate, and believes those of one authority.

Certificates are read again when their files change, so that they can be rotated under a running
server: put the new key and certificate there, each by renaming. Connections that are open stay.
"""

from __future__ import annotations

import logging
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from hfmds.errors import ConfigurationError
from hfmds.service.limits.log_throttle import Seldom

log = logging.getLogger(__name__)

SAY_EVERY_SECONDS = 30.0
"""How often a server says that it keeps its certificate, as the new one cannot be used."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where a process has its certificate and key, and the authority's certificates, all PEM."""

    certificate: Path
    key: Path
    authority: Path

    def server_credentials(self, *, of_callers_too: bool = True) -> grpc.ServerCredentials:
        """For a server that takes calls only from who has a certificate of the authority.

        Without `of_callers_too`, from anybody: the server alone shows one.
        """
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), _Rotation(self), require_client_authentication=of_callers_too
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For calls to a server with a certificate of the authority, showing ours."""
        key, certificate, authority = self.read()
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Key, certificate and authority; ConfigurationError if they cannot be used."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.authority)
            return (
                self.key.read_bytes(),
                self.certificate.read_bytes(),
                self.authority.read_bytes(),
            )
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"{self.certificate}, {self.key} and {self.authority} are not a certificate, its "
                f"key and an authority in PEM ({error.reason or error}); set HFMDS_TLS_CERTIFICATE,"
                f" HFMDS_TLS_KEY and HFMDS_TLS_AUTHORITY"
            ) from error
        except OSError as error:
            raise ConfigurationError(
                f"cannot read the TLS files {self.certificate}, {self.key} and {self.authority}: "
                f"{error.strerror}"
            ) from error

    def changed_at(self) -> tuple[int, ...]:
        """Differs when a file was replaced."""
        return tuple(
            path.stat().st_mtime_ns for path in (self.key, self.certificate, self.authority)
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        key, certificate, authority = self.read()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom a caller without a certificate of its own believes: the authority's, PEM."""

    authority: Path

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For calls to a server with a certificate of the authority."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.authority)
            return grpc.ssl_channel_credentials(self.authority.read_bytes())
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"{self.authority} has no authority's certificate in PEM "
                f"({error.reason or error}); set HFMDS_TLS_AUTHORITY"
            ) from error
        except OSError as error:
            raise ConfigurationError(
                f"cannot read {self.authority}: {error.strerror}; set HFMDS_TLS_AUTHORITY"
            ) from error


@dataclass(frozen=True, slots=True)
class Bearer:
    """A caller that shows a token in place of a certificate; gRPC sends it over TLS only."""

    trust: Trust
    token: str = field(repr=False)  # a secret

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For calls to a server with a certificate of the authority, showing the token."""
        return grpc.composite_channel_credentials(
            self.trust.channel_credentials(), grpc.access_token_call_credentials(self.token)
        )


class _Rotation:
    """Asked by gRPC before each handshake: the new configuration, or None if none is new."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._known = files.changed_at()
        self._seldom = Seldom(SAY_EVERY_SECONDS)

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        try:
            now = self._files.changed_at()
            if now == self._known:
                return None
            configuration = self._files._configuration()
        except (OSError, ConfigurationError) as error:
            # Half replaced, or wrongly: what was read before is good until it expires.
            if self._seldom.times("", time.monotonic()):  # whoever connects makes this happen
                log.warning("the TLS files cannot be read anew: %s", error)
            return None
        self._known = now
        log.info("TLS certificate read anew", extra={"certificate": str(self._files.certificate)})
        return configuration
