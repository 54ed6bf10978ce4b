"""The name of a public key, by which a device is known from one certificate to the next."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes


def key_sha256(key: PublicKeyTypes) -> str:
    """64 hex digits: of its SubjectPublicKeyInfo in DER."""
    encoded = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(encoded).hexdigest()
