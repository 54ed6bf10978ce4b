"""Certificate requests of devices, valid and invalid."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hfmds.errors import InvalidInput
from hfmds.pki.authority import new_key
from hfmds.pki.certificate_requests import MAX_REQUEST_BYTES, Request, make_request, sign_request
from hfmds.service.security.identity import Identity, Kind

CAMERA = Identity(Kind.DEVICE, "camera-7")
NONCE = b"n" * 32


def request_for(*names: x509.GeneralName, curve: ec.EllipticCurve | None = None) -> bytes:
    key = ec.generate_private_key(curve or ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def test_a_request_is_its_keys() -> None:
    key = new_key()
    first, second = Request(make_request(key)), Request(make_request(key, "another name"))
    assert first.key == key.public_key()
    assert first.key_sha256 == second.key_sha256
    assert first.key_sha256 != Request(make_request(new_key())).key_sha256


def test_a_signature_is_for_one_nonce_and_one_request() -> None:
    key = new_key()
    der = make_request(key)
    signature = sign_request(key, NONCE, der)
    Request(der).require_signature(NONCE, signature)
    for nonce, other in ((b"m" * 32, der), (NONCE, make_request(key, "b"))):
        with pytest.raises(InvalidInput, match="the signature over nonce and csr"):
            Request(other).require_signature(nonce, signature)
    with pytest.raises(InvalidInput):
        Request(der).require_signature(NONCE, sign_request(new_key(), NONCE, der))
    with pytest.raises(InvalidInput):
        Request(der).require_signature(NONCE, b"")


def test_a_request_may_ask_for_its_own_name_and_no_other() -> None:
    own = x509.UniformResourceIdentifier(CAMERA.uri)
    Request(request_for()).require_identity(CAMERA)
    Request(request_for(own)).require_identity(CAMERA)
    for other in (
        x509.UniformResourceIdentifier("spiffe://hfmds/device/phone"),
        x509.UniformResourceIdentifier("spiffe://hfmds/admin/owner/camera-7"),
        x509.DNSName("coordinator.example"),
    ):
        with pytest.raises(InvalidInput, match=CAMERA.uri):
            Request(request_for(own, other)).require_identity(CAMERA)


def test_what_is_no_request_of_a_p256_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="P-256"):
        Request(request_for(curve=ec.SECP384R1()))
    with pytest.raises(InvalidInput, match="PKCS#10"):
        Request(b"\x30\x03\x02\x01\x00")
    with pytest.raises(InvalidInput, match="at most"):
        Request(b"0" * (MAX_REQUEST_BYTES + 1))
    sound = make_request(new_key())
    with pytest.raises(InvalidInput, match="not signed by its own key"):
        Request(sound[:-1] + bytes([sound[-1] ^ 1]))


def test_a_request_with_any_other_byte_is_refused_or_has_the_same_key() -> None:
    sound = request_for(x509.UniformResourceIdentifier(CAMERA.uri))
    key = Request(sound).key
    for position, other in product(range(len(sound)), range(256)):
        changed = sound[:position] + bytes([other]) + sound[position + 1 :]
        with suppress(InvalidInput):
            assert Request(changed).key == key
