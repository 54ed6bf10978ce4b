"""Certificate requests: a device makes them, and the coordinator checks them.

A signature over the coordinator's nonce proves that the device has the key now, whatever the
device's clock says.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hfmds.errors import InvalidInput
from hfmds.service.security.certificates import MALFORMED, key_sha256
from hfmds.service.security.identity import Identity

MAX_REQUEST_BYTES = 4096

# A signature for this purpose is never valid for another purpose.
_PURPOSE = b"hfmds enrolment"


def make_request(key: ec.EllipticCurvePrivateKey, name: str = "device") -> bytes:
    """Make a PKCS#10 request for the key, in DER. The name in it is for people."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def sign_request(key: ec.EllipticCurvePrivateKey, nonce: bytes, request: bytes) -> bytes:
    """Sign the request together with the nonce, which proves that the request is fresh."""
    return key.sign(_PURPOSE + nonce + request, ec.ECDSA(hashes.SHA256()))


class Request:
    """A request that is signed by its own key."""

    def __init__(self, der: bytes) -> None:
        """Parse a request; InvalidInput if it is not a valid one of a P-256 key."""
        if len(der) > MAX_REQUEST_BYTES:
            raise InvalidInput(f"a csr of {len(der)} bytes; at most {MAX_REQUEST_BYTES}")
        try:
            request = x509.load_der_x509_csr(der)
            key = request.public_key()
            sound = request.is_signature_valid
            self._names = _names(request)
        except MALFORMED as error:
            raise InvalidInput(f"the csr is not a PKCS#10 request in DER: {error}") from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
            raise InvalidInput("the csr's key must be one on the curve P-256")
        if not sound:
            raise InvalidInput("the csr is not signed by its own key")
        self._der = der
        self.key = key

    @property
    def key_sha256(self) -> str:
        """The name of the key: 64 hex digits."""
        return key_sha256(self.key)

    def require_signature(self, nonce: bytes, signature: bytes) -> None:
        """Raise InvalidInput unless the key signed this request together with the nonce."""
        try:
            self.key.verify(signature, _PURPOSE + nonce + self._der, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise InvalidInput("the signature over nonce and csr is not by the csr's key") from None

    def require_identity(self, identity: Identity) -> None:
        """Raise InvalidInput if the request asks for another name."""
        others = [name for name in self._names if name != identity.uri]
        if others:
            raise InvalidInput(
                f"the csr asks for the name {others[0][:200]!r}; omit names, or ask for "
                f"{identity.uri}"
            )


def _names(request: x509.CertificateSigningRequest) -> list[str]:
    """Return all alternative names in the request, of every kind."""
    try:
        extension = request.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [str(getattr(name, "value", name)) for name in extension.value]
