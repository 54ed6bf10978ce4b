"""Which devices get a certificate. The test moves the clocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.identity.nonces import LIFETIME_SECONDS
from hfmds.errors import Conflict, InvalidInput, NotAllowed, TooLate, WrongState
from hfmds.pki.authority import Authority
from hfmds.pki.device_key import DeviceKey
from hfmds.pki.token_text import TokenKind, new_token
from hfmds.service.security.certificates import Certificate
from hfmds.service.security.identity import Identity, Kind
from hfmds.storage.database import open_database, write_session
from tests.coordinator.identity.registry_office import (
    DAY,
    OLGA,
    START,
    Office,
    certificate,
    new_issuer,
)
from tests.support.databases import database_of

CAMERA = Identity(Kind.DEVICE, "camera")


def by_hand(key: DeviceKey) -> Certificate:
    """Return a certificate of another issuer."""
    return Certificate(CAMERA, "1", 0, 2**40, key.sha256)


@pytest.fixture(scope="module")
def issuer() -> Authority:
    return new_issuer(days=365)


@pytest.fixture
def office(tmp_path: Path, issuer: Authority) -> Office:
    return Office(tmp_path, issuer=issuer)


# --- a token ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("both_databases")
def test_a_token_makes_a_device_with_a_certificate_of_its_key(office: Office) -> None:
    key = DeviceKey.create()
    issued = office.enrol(key, office.token(device_id="camera"))
    assert issued.device_id == "camera"
    assert issued.authority == b"whom all believe"
    own_certificate = certificate(issued)
    assert own_certificate.identity == Identity(Kind.DEVICE, "camera")
    assert (own_certificate.begins, own_certificate.ends) == (int(START) - 300, int(START + DAY))
    assert issued.lifetime_seconds == DAY
    assert 0.6 * DAY <= issued.renew_after_seconds <= 0.7 * DAY
    shown = x509.load_pem_x509_certificate(issued.chain).public_key()
    asked = x509.load_der_x509_csr(key.request()).public_key()
    assert shown == asked
    assert office.log() == ["token-created", "device-enrolled"]


def test_a_repeated_enrolment_after_a_lost_answer_counts_once(office: Office) -> None:
    key, token = DeviceKey.create(), office.token(uses=2, prefix="cam-")
    first = office.enrol(key, token)
    again = office.enrol(key, token)
    assert first.device_id == again.device_id
    assert first.device_id.startswith("cam-")
    assert certificate(first).serial != certificate(again).serial
    (kept,) = office.tokens.list()
    assert kept.terms.used == 1  # type: ignore[union-attr]


def test_a_used_up_token_enrols_no_other_device(office: Office) -> None:
    once, twice = office.token(device_id="camera"), office.token(uses=2)
    office.enrol(DeviceKey.create(), once)
    with pytest.raises(NotAllowed, match="is spent"):
        office.enrol(DeviceKey.create(), once)
    ids = {office.enrol(DeviceKey.create(), twice).device_id for _ in range(2)}
    assert len(ids) == 2
    with pytest.raises(NotAllowed, match="is spent"):
        office.enrol(DeviceKey.create(), twice)


def test_wrong_revoked_and_old_tokens_are_refused(office: Office) -> None:
    key, token = DeviceKey.create(), office.token(seconds=60.0)
    stranger = new_token(TokenKind.ENROL)
    guess = type(token)(token.kind, token.token_id, stranger.secret)
    for wrong in (stranger, guess, office.admin()):
        with pytest.raises(NotAllowed, match="not one of this fleet"):
            office.enrol(key, wrong)
    revoked = office.token()
    office.tokens.revoke(revoked.token_id, OLGA)
    with pytest.raises(NotAllowed, match="has ended"):
        office.enrol(key, revoked)
    office.now += 60.0
    with pytest.raises(NotAllowed, match="has ended"):
        office.enrol(key, token)


def test_a_token_enrols_only_the_ids_it_names(office: Office) -> None:
    key = DeviceKey.create()
    for token, wish in (
        (office.token(device_id="camera"), "phone"),
        (office.token(prefix="cam-"), "phone"),
    ):
        with pytest.raises(NotAllowed, match="not for device id 'phone'"):
            office.enrol(key, token, wish)
    with pytest.raises(InvalidInput, match="not an id"):
        office.enrol(key, office.token(), "../camera")
    token = office.token(prefix="cam-")
    assert office.enrol(key, token, "cam-7").device_id == "cam-7"
    for other in (token, office.token(prefix="cam-"), office.token(device_id="cam-8")):
        with pytest.raises(NotAllowed, match="'cam-7'"):  # the key belongs to it
            office.enrol(key, other, "cam-8")


def test_replacing_a_device_needs_a_token_for_its_id(office: Office) -> None:
    office.enrol(DeviceKey.create(), office.token(device_id="camera"))
    thief = DeviceKey.create()
    with pytest.raises(Conflict, match="with another key"):
        office.enrol(thief, office.token(uses=9), "camera")
    wiped = office.enrol(thief, office.token(device_id="camera"))
    assert wiped.device_id == "camera"


# --- proofs -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("both_databases")
def test_a_nonce_works_once_for_a_limited_time_at_every_replica(
    office: Office, tmp_path: Path, issuer: Authority
) -> None:
    key, replica = DeviceKey.create(), Office(tmp_path, issuer=issuer)
    token, request = office.token(uses=9), key.request()
    nonce = replica.enrolment.begin()
    proof = key.proof(nonce, request)
    office.enrolment.enrol(token.text, nonce, "", request, proof)
    for one in (office, replica):
        with pytest.raises(TooLate, match="begin again"):
            one.enrolment.enrol(token.text, nonce, "", request, proof)
    old = office.enrolment.begin()
    office.now += LIFETIME_SECONDS
    with pytest.raises(TooLate):
        office.enrolment.enrol(token.text, old, "", request, key.proof(old, request))


def test_an_invented_nonce_is_refused(office: Office, tmp_path: Path) -> None:
    key, token = DeviceKey.create(), office.token()
    request, good = key.request(), office.enrolment.begin()
    later = bytes([good[0]]) + bytes([good[1] ^ 1]) + good[2:]  # a later end of validity
    for nonce in (b"", b"n" * 56, later, good + b"0"):
        with pytest.raises(TooLate):
            office.enrolment.enrol(token.text, nonce, "", request, key.proof(nonce, request))


def test_nonces_for_strangers_do_not_wait_for_a_writer(office: Office, tmp_path: Path) -> None:
    key, stranger = DeviceKey.create(), new_token(TokenKind.ENROL)
    other = open_database(database_of(tmp_path), busy_timeout_seconds=0.1)
    with write_session(other):  # another process writes
        for token in (stranger, None):
            with pytest.raises(NotAllowed):
                office.enrol(key, token, "camera")


def test_a_refused_enrolment_spends_neither_token_nor_nonce(office: Office) -> None:
    key, token = DeviceKey.create(), office.token(device_id="camera")
    nonce, request = office.enrolment.begin(), key.request()
    proof = key.proof(nonce, request)
    with pytest.raises(NotAllowed):
        office.enrolment.enrol(token.text, nonce, "phone", request, proof)
    office.enrolment.enrol(token.text, nonce, "camera", request, proof)


def test_a_request_must_be_signed_with_the_nonce_by_its_own_key(office: Office) -> None:
    key, token, nonce = DeviceKey.create(), office.token(), office.enrolment.begin()
    request, other = key.request(), DeviceKey.create()
    for proof in (other.proof(nonce, request), key.proof(b"another", request), b""):
        with pytest.raises(InvalidInput, match="signature"):
            office.enrolment.enrol(token.text, nonce, "", request, proof)


def test_a_request_that_names_another_identity_is_refused(office: Office) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    owner = x509.UniformResourceIdentifier("spiffe://hfmds/admin/owner/mallory")
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .add_extension(x509.SubjectAlternativeName([owner]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    nonce = office.enrolment.begin()
    proof = DeviceKey(pem).proof(nonce, request)
    with pytest.raises(InvalidInput, match="admin/owner/mallory"):
        office.enrolment.enrol(office.token().text, nonce, "", request, proof)


# --- the next certificate -----------------------------------------------------------------------


def test_a_certificate_is_renewed_for_its_own_key_only(office: Office) -> None:
    key = DeviceKey.create()
    first = office.enrol(key, office.token(device_id="camera"))
    office.now += DAY / 2
    for _ in range(2):  # the first answer may have been lost
        renewed = certificate(office.renew(first, key))
        assert renewed.identity == CAMERA
        assert renewed.key_sha256 == key.sha256
        assert renewed.ends == int(START + 1.5 * DAY)
    with pytest.raises(InvalidInput, match="another key"):
        office.renew(first, DeviceKey.create())


def test_a_device_with_an_expired_certificate_renews_by_its_key(office: Office) -> None:
    key, second = DeviceKey.create(), DeviceKey.create()
    office.enrol(key, office.token(device_id="camera"))
    office.now += 30 * DAY
    assert office.enrol(key, device_id="camera").device_id == "camera"
    with pytest.raises(NotAllowed, match="not known by this key"):
        office.enrol(second, device_id="camera")
    with pytest.raises(NotAllowed, match="not known by this key"):
        office.enrol(key, device_id="phone")
    with pytest.raises(InvalidInput, match="device_id"):
        office.enrol(key)


def test_a_replaced_device_gets_no_further_certificate(office: Office) -> None:
    before, key = DeviceKey.create(), DeviceKey.create()
    old = office.enrol(before, office.token(device_id="camera"))
    office.now += 1
    new = office.enrol(key, office.token(device_id="camera"))
    with pytest.raises(NotAllowed, match="another key since"):
        office.renew(old, before)
    with pytest.raises(NotAllowed, match="not known by this key"):
        office.enrol(before, device_id="camera")
    office.renew(new, key)
    with pytest.raises(NotAllowed, match="somebody else"):
        office.enrol(before, office.token(device_id="camera"))


def test_a_certificate_from_another_issuer_is_renewed_without_enrolment(office: Office) -> None:
    first, second = DeviceKey.create(), DeviceKey.create()
    for key in (first, second):
        renewed = office.enrolment.renew("camera", by_hand(key), key.request())
        assert certificate(renewed).identity == CAMERA
        assert certificate(renewed).key_sha256 == key.sha256
    with pytest.raises(NotAllowed, match="replaced"):
        office.enrolment.renew("camera", by_hand(first), first.request())
    office.members.revoke_certificate("1", "", OLGA)
    with pytest.raises(NotAllowed, match="was revoked"):
        office.enrolment.renew("camera", by_hand(second), second.request())


def test_a_device_that_was_away_beyond_the_grace_time_needs_a_token(office: Office) -> None:
    key = DeviceKey.create()
    office.enrol(key, office.token(device_id="camera"))
    office.now += 91 * DAY
    with pytest.raises(NotAllowed, match="away for too long"):
        office.enrol(key, device_id="camera")


def test_no_certificate_outlives_its_issuer(tmp_path: Path) -> None:
    office = Office(tmp_path, issuer=new_issuer(days=0.5))
    issued = office.enrol(DeviceKey.create(), office.token())
    assert issued.lifetime_seconds == pytest.approx(DAY / 2, abs=1)
    office.now += DAY / 2
    with pytest.raises(WrongState, match="has expired"):
        office.enrol(DeviceKey.create(), office.token())


def test_enrolment_needs_an_issuer(tmp_path: Path) -> None:
    office = Office(tmp_path)
    with pytest.raises(WrongState, match="HFMDS_ISSUER_CERTIFICATE"):
        office.enrol(DeviceKey.create(), office.token())
    with pytest.raises(WrongState, match="HFMDS_ISSUER_CERTIFICATE"):
        office.enrolment.renew("camera", by_hand(DeviceKey.create()), b"")


# --- revoked devices ----------------------------------------------------------------------------


@pytest.mark.usefixtures("both_databases")
def test_a_revoked_device_comes_back_only_by_a_later_token_for_its_id(office: Office) -> None:
    key, token = DeviceKey.create(), office.token(device_id="camera")
    old, group = office.enrol(key, token), office.token(uses=9)
    before = office.token(device_id="camera")
    office.members.revoke("camera", "stolen", OLGA)
    with pytest.raises(NotAllowed, match="was revoked"):
        office.members.exclusions().require_alive(certificate(old))
    for way in (token, group, before, None):
        with pytest.raises(NotAllowed, match=r"was revoked|has ended"):
            office.enrol(key, way, "camera")
    with pytest.raises(NotAllowed, match="was revoked"):
        office.renew(old, key)
    office.now += 0.1
    another = DeviceKey.create()
    fresh = office.enrol(another, office.token(device_id="camera"))
    office.members.exclusions().require_alive(certificate(fresh))
    renewed = office.renew(fresh, another)
    office.members.exclusions().require_alive(certificate(renewed))
    # The refusal does not depend on the state of the gate.
    with pytest.raises(NotAllowed, match="another key since"):
        office.renew(old, key)
    for way in (before, group):
        with pytest.raises((NotAllowed, Conflict)):
            office.enrol(DeviceKey.create(), way, "camera")
    with pytest.raises(NotAllowed, match="was revoked"):  # its old keys stay revoked
        office.members.exclusions().require_alive(certificate(old))


@pytest.mark.parametrize("clock_goes", [0.1, -2.0])  # another replica's clock may be behind
def test_a_device_that_came_back_is_revoked_again_within_a_second(
    office: Office, clock_goes: float
) -> None:
    office.members.revoke("camera", "stolen", OLGA)
    back = office.enrol(DeviceKey.create(), office.token(device_id="camera"))
    office.members.exclusions().require_alive(certificate(back))
    office.now += clock_goes
    office.members.revoke("camera", "stolen again", OLGA)
    with pytest.raises(NotAllowed, match="was revoked"):
        office.members.exclusions().require_alive(certificate(back))
    fresh = office.enrol(DeviceKey.create(), office.token(device_id="camera"))
    office.members.exclusions().require_alive(certificate(fresh))


def test_old_keys_stay_revoked_when_their_device_enrols_again(
    office: Office,
) -> None:
    stolen, group = DeviceKey.create(), office.token(uses=9)
    office.enrol(stolen, group, "camera")
    office.members.revoke("camera", "stolen", OLGA)
    office.now += 0.1
    named = office.token(device_id="camera")
    with pytest.raises(NotAllowed, match="somebody else"):
        office.enrol(stolen, named)
    key = DeviceKey.create()
    shown = office.enrol(key, named)
    for _ in range(3):  # renewals make no difference
        office.now += 1.0
        shown = office.renew(shown, key)
    for way in (None, group, office.token(device_id="camera")):
        with pytest.raises((NotAllowed, Conflict)):
            office.enrol(stolen, way, "camera")
    with pytest.raises(NotAllowed, match="somebody else"):  # nor by another name
        office.enrol(stolen, group, "phone")


@pytest.mark.usefixtures("both_databases")
@pytest.mark.parametrize("which", range(4))
def test_revoking_a_certificate_revokes_all_certificates_of_its_key(
    office: Office, which: int
) -> None:
    key, token = DeviceKey.create(), office.token()
    issued = [office.enrol(key, token, "camera")]
    for _ in range(3):
        office.now += 1.0
        issued.append(office.renew(issued[-1], key))
    office.members.revoke_certificate(certificate(issued[which]).serial, "", OLGA)
    for shown in issued:
        with pytest.raises(NotAllowed, match="was revoked"):
            office.members.exclusions().require_alive(certificate(shown))
        with pytest.raises(NotAllowed, match="was revoked"):
            office.renew(shown, key)
    for way in (token, None):
        with pytest.raises(NotAllowed, match="somebody else"):
            office.enrol(key, way, "camera")
    with pytest.raises(NotAllowed, match="'phone'"):  # nor by another name
        office.enrol(key, office.token(), "phone")


def test_revoking_a_replaced_device_revokes_all_its_certificates(
    office: Office,
) -> None:
    old = DeviceKey.create()
    first = office.enrol(old, office.token(device_id="camera"))
    office.now += 1.0
    second = office.renew(first, old)
    office.now += 1.0
    successor = office.enrol(DeviceKey.create(), office.token(device_id="camera"))
    office.members.revoke_certificate(certificate(first).serial, "", OLGA)
    with pytest.raises(NotAllowed, match="was revoked"):
        office.members.exclusions().require_alive(certificate(second))
    office.members.exclusions().require_alive(certificate(successor))


def test_refusals_do_not_tell_strangers_which_devices_are_revoked(office: Office) -> None:
    key, stranger = DeviceKey.create(), DeviceKey.create()
    office.enrol(key, office.token(device_id="camera"))
    office.members.revoke("camera", "stolen", OLGA)
    refusals = []
    for device_id in ("camera", "nobody"):
        with pytest.raises(NotAllowed) as refusal:
            office.enrol(stranger, device_id=device_id)
        refusals.append(str(refusal.value).replace(device_id, "it"))
    assert refusals[0] == refusals[1]


def test_a_device_in_quarantine_gets_its_certificate(office: Office) -> None:
    key = DeviceKey.create()
    issued = office.enrol(key, office.token(device_id="camera"))
    office.members.quarantine("camera", "sends noise", OLGA)
    renewed = office.renew(issued, key)
    office.members.exclusions().require_alive(certificate(renewed))
    with pytest.raises(TooLate, match="sends noise"):
        office.members.exclusions().require_trusted("camera")
