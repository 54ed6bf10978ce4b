"""The private key of a device, which never leaves the device."""

from __future__ import annotations

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hfmds.errors import ConfigurationError
from hfmds.pki.authority import key_pem, new_key
from hfmds.pki.certificate_requests import Request, make_request, sign_request


class DeviceKey:
    """A device's private key."""

    def __init__(self, pem: bytes) -> None:
        """Load the key from PEM; ConfigurationError if it is no such key."""
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"not a device's key: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigurationError("a device's key must be one on an elliptic curve")
        self._key = key

    @classmethod
    def create(cls) -> DeviceKey:
        """Make a new key."""
        return cls(key_pem(new_key()))

    @property
    def pem(self) -> bytes:
        """The key to store; a secret."""
        return key_pem(self._key)

    @property
    def sha256(self) -> str:
        """The name of the key: 64 hex digits."""
        return Request(self.request()).key_sha256

    def request(self) -> bytes:
        """Make a certificate request, in DER. The coordinator chooses the name."""
        return make_request(self._key)

    def proof(self, nonce: bytes, request: bytes) -> bytes:
        """Sign the nonce, which proves that the sender of the request has the key now."""
        return sign_request(self._key, nonce, request)
