"""The other end of a channel, in words that an operator can act on."""

from __future__ import annotations

from dataclasses import dataclass

from hfmds.service.security.tls import Bearer, TlsFiles, Trust


@dataclass(frozen=True, slots=True)
class Peer:
    """A service to call: Peer("coordinator", "127.0.0.1:7401", "HFMDS_COORDINATOR")."""

    name: str
    address: str
    setting: str  # the setting that names the address
    tls: TlsFiles | Trust | Bearer | None = None  # the believed authorities, and our own proof

    def __str__(self) -> str:
        return f"{self.name} at {self.address}"
