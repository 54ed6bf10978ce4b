"""The key that makes a device itself: it asks for certificates with it, and tells it to nobody."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hfmds.errors import ConfigurationError
from hfmds.pki.authority import key_pem, new_key

_PURPOSE = b"hfmds enrolment"


class DeviceKey:
    """A device's private key."""

    def __init__(self, pem: bytes) -> None:
        """As `pem` had it; ConfigurationError if that is no such key."""
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"not a device's key: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigurationError("a device's key must be one on an elliptic curve")
        self._key = key

    @classmethod
    def create(cls) -> DeviceKey:
        """A new one."""
        return cls(key_pem(new_key()))

    @property
    def pem(self) -> bytes:
        """To keep; a secret."""
        return key_pem(self._key)

    def request(self) -> bytes:
        """A certificate request, DER; it names nobody, as the coordinator knows who asks."""
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)

    def proof(self, nonce: bytes, request: bytes) -> bytes:
        """That whoever sends the request has the key now."""
        return self._key.sign(proof_message(nonce, request), ec.ECDSA(hashes.SHA256()))


def proof_message(nonce: bytes, request: bytes) -> bytes:
    """What a device signs when it enrols."""
    return _PURPOSE + nonce + request
