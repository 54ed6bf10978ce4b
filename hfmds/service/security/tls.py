"""TLS between the programs: each shows a certificate, and believes the fleet's authorities.

A server reads its files again when they change. To rotate a certificate under a running server,
put the new key and the new certificate in place, each by renaming. Open connections stay.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import grpc

from hfmds.errors import ConfigurationError

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of a process: its certificate, its key, and the believed authorities, all PEM."""

    certificate: Path
    key: Path
    authority: Path

    def server_credentials(self, *, of_callers_too: bool = True) -> grpc.ServerCredentials:
        """Make credentials for a server that follows its files.

        With `of_callers_too`, callers must show a certificate of the authorities. Without, the
        server takes calls from anybody, and only the server shows a certificate.
        """
        rotation = Rotation(self, self._configuration)
        return grpc.dynamic_ssl_server_credentials(
            rotation.current,
            lambda: rotation.current if rotation.reload() else None,
            require_client_authentication=of_callers_too,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Make credentials for calls that show this certificate."""
        key, certificate, authority = self.read()
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Read key, certificate and authorities; ConfigurationError if TLS cannot use them."""
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
            raise self._unreadable(error) from error

    def changed_at(self) -> tuple[int, ...]:
        """Return a value that changes whenever one of the files is replaced."""
        try:
            paths = self.key, self.certificate, self.authority
            return tuple(path.stat().st_mtime_ns for path in paths)
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"cannot read the TLS files {self.certificate}, {self.key} and {self.authority}: "
            f"{error.strerror}"
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        key, certificate, authority = self.read()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)


@dataclass(frozen=True, slots=True)
class Trust:
    """The believed authorities of a caller that has no certificate of its own, PEM."""

    authority: Path

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Make credentials for calls to a server that the authorities certified."""
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
    """A caller that shows a token instead of a certificate. gRPC sends tokens over TLS only."""

    trust: Trust
    token: str = field(repr=False)  # a secret

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Make credentials for calls that show the token."""
        return grpc.composite_channel_credentials(
            self.trust.channel_credentials(), grpc.access_token_call_credentials(self.token)
        )


class Rotation(Generic[T]):
    """What a server loads from its TLS files, and loads again when they change.

    While the new files cannot be used, as in the middle of a replacement, the old result stays.
    """

    def __init__(self, files: TlsFiles, load: Callable[[], T]) -> None:
        """Load it; ConfigurationError if the files cannot be used."""
        self._files = files
        self._load = load
        self._changed_at = files.changed_at()
        self._failed = False
        self.current = load()

    def reload(self) -> bool:
        """Load the files again if they changed; return whether `current` is new."""
        try:
            changed_at = self._files.changed_at()
            if changed_at == self._changed_at:
                return False
            self.current = self._load()
        except ConfigurationError as error:
            # Every connection tries again. One line in the log is enough.
            log.log(
                logging.DEBUG if self._failed else logging.WARNING,
                "cannot read the TLS files again, so the old certificate stays: %s",
                error,
            )
            self._failed = True
            return False
        self._changed_at, self._failed = changed_at, False
        log.info("TLS certificate read again", extra={"certificate": str(self._files.certificate)})
        return True
