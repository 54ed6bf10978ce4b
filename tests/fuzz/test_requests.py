"""Input to the issuer from callers without a certificate: requests, nonces, tokens and ids."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmds.errors import HfmdsError
from hfmds.pki.certificate_requests import Request
from hfmds.pki.device_key import DeviceKey
from hfmds.pki.token_text import TokenKind, parse_token
from hfmds.service.security.identity import identity_from
from tests.coordinator.identity.registry_office import Office, new_issuer
from tests.fuzz.budget import tried
from tests.fuzz.protobuf import damaged

# A request from a device, for a key that is deleted.
REQUEST = bytes.fromhex(
    "3081cb30730201003011310f300d06035504030c066465766963653059301306072a8648ce3d020106082a86"
    "48ce3d030107034200044f6d67932f5a5335bb748c7314a752f1b8f7acf3aabdd53a3d33157e834e44ccb495"
    "a83835f5419717ddd06ddf610734ec29076b58e0f30112c5ef9a9c0f2a01a000300a06082a8648ce3d040302"
    "034800304502202525b6a760f039d63a79d047a7554d8a002ad419c1b3cfa2d8332eab973f86da022100ecf0"
    "0d6e3621f7a437a86f9146efae91c2d9431c8409aa41681e5daab096a92e"
)


def test_an_unchanged_request_is_accepted() -> None:
    """Prove that the fuzzed requests start from a valid one."""
    assert len(Request(REQUEST).key_sha256) == 64


@tried(300)
@given(der=damaged(REQUEST) | st.binary(max_size=300))
def test_a_request_that_was_changed_is_refused(der: bytes) -> None:
    if der == REQUEST:
        return
    with suppress(HfmdsError):
        request = Request(der)
        pytest.fail(f"taken as a request of the key {request.key_sha256}")


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    folder: Path = tmp_path_factory.mktemp("office")
    return Office(folder, issuer=new_issuer())


def valid_arguments(office: Office) -> dict[str, Any]:
    """Return the arguments of an enrolment."""
    key = DeviceKey.create()
    nonce, request = office.enrolment.begin(), key.request()
    return {
        "token": office.token().text,
        "nonce": nonce,
        "wished_id": "camera",
        "csr": request,
        "signature": key.proof(nonce, request),
    }


def test_correct_enrolments_succeed(tmp_path: Path) -> None:
    office = Office(tmp_path, issuer=new_issuer())
    assert office.enrolment.enrol(**valid_arguments(office)).device_id == "camera"


@tried(60)
@given(data=st.data())
def test_enrolments_with_any_wrong_part_are_refused(office: Office, data: st.DataObject) -> None:
    arguments = valid_arguments(office)
    wrong = data.draw(st.sampled_from(sorted(arguments.keys() - {"wished_id"})))
    flip = data.draw(st.integers(0, 7))
    at = data.draw(st.integers(0, 500))
    value = arguments[wrong]
    content = bytearray(value.encode() if isinstance(value, str) else value)
    content[at % len(content)] ^= 1 << flip
    changed = bytes(content)
    arguments[wrong] = changed.decode(errors="replace") if isinstance(value, str) else changed
    with suppress(HfmdsError):
        office.enrolment.enrol(**arguments)
        pytest.fail(f"enrolled with another {wrong}")


@tried(100)
@given(
    text=st.text()
    | damaged(b"hfmds_enrol_0123456789ab_" + b"0" * 64).map(lambda b: b.decode(errors="replace"))
)
def test_malformed_tokens_are_refused(text: str) -> None:
    token = parse_token(text, TokenKind.ENROL)
    assert token is None or token.text == text


@tried(100)
@given(
    uri=st.text()
    | damaged(b"spiffe://hfmds/device/camera-7").map(lambda b: b.decode(errors="replace"))
)
def test_malformed_identities_are_refused(uri: str) -> None:
    with suppress(HfmdsError):
        assert identity_from(uri).uri == uri
