"""The name of a public key, which stays the same from one certificate to the next."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes


def key_sha256(key: PublicKeyTypes) -> str:
    """Return 64 hex digits: the SHA-256 of the key's SubjectPublicKeyInfo in DER."""
    encoded = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(encoded).hexdigest()
