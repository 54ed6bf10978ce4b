"""Certificate requests of devices: made by a device, checked by the coordinator's issuer.

A device proves by a signature over the coordinator's nonce that it has the key now, whatever its
clock says.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hfmds.errors import InvalidInput
from hfmds.service.security.identity import Identity
from hfmds.service.security.public_keys import key_sha256

MAX_REQUEST_BYTES = 4096

# So that a signature that was made for this is never one for something else.
_PURPOSE = b"hfmds enrolment"


def make_request(key: ec.EllipticCurvePrivateKey, name: str = "device") -> bytes:
    """A PKCS#10 request for the key, DER; the name in it is for people."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def sign_request(key: ec.EllipticCurvePrivateKey, nonce: bytes, request: bytes) -> bytes:
    """Prove to whoever chose the nonce that the request is of now."""
    return key.sign(_PURPOSE + nonce + request, ec.ECDSA(hashes.SHA256()))


class Request:
    """A request that was signed by the key it is for."""

    def __init__(self, der: bytes) -> None:
        """InvalidInput if it is not a sound one of a P-256 key."""
        if len(der) > MAX_REQUEST_BYTES:
            raise InvalidInput(f"a csr of {len(der)} bytes; at most {MAX_REQUEST_BYTES}")
        try:
            request = x509.load_der_x509_csr(der)
            key = request.public_key()
            sound = request.is_signature_valid
            self._names = _names(request)
        except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
            raise InvalidInput(f"the csr is not a PKCS#10 request in DER: {error}") from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
            raise InvalidInput("the csr's key must be one on the curve P-256")
        if not sound:
            raise InvalidInput("the csr is not signed by its own key")
        self._der = der
        self.key = key

    @property
    def key_sha256(self) -> str:
        """Names the key: 64 hex digits."""
        return key_sha256(self.key)

    def require_signature(self, nonce: bytes, signature: bytes) -> None:
        """InvalidInput unless the key's owner has signed this request together with the nonce."""
        try:
            self.key.verify(signature, _PURPOSE + nonce + self._der, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise InvalidInput(
                "the signature over nonce and csr is not one by the csr's key"
            ) from None

    def require_identity(self, identity: Identity) -> None:
        """InvalidInput if it asks to be named as somebody else."""
        others = [name for name in self._names if name != identity.uri]
        if others:
            raise InvalidInput(
                f"the csr asks for the name {others[0][:200]!r}; leave names out, or ask for "
                f"{identity.uri}"
            )


def _names(request: x509.CertificateSigningRequest) -> list[str]:
    """All alternative names that it asks for, of whatever kind."""
    try:
        found = request.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [str(getattr(name, "value", name)) for name in found.value]
