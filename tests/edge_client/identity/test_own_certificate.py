"""A device gets and renews its certificate, even with a wrong clock."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from edge_client.identity.own_certificate import OwnCertificate
from hfmds.errors import (
    ConfigurationError,
    Conflict,
    HfmdsError,
    LimitExceeded,
    NotAllowed,
    TooLate,
    Unavailable,
    WrongState,
)
from hfmds.pki.authority import Authority
from hfmds.pki.certificate_requests import Request
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.tls import TlsFiles
from hfmds.wire.clients.enrolment_client import IssuedCertificate

DAY = 24 * 3600.0
TOKEN = "hfmds_enrol_1"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Coordinator:
    """A coordinator that issues certificates. It accepts each of `tokens` for one key."""

    def __init__(self, *tokens: str) -> None:
        self.issuer = Authority.create_issuer("tests", NOW, timedelta(days=9999))[0]
        self.used_by: dict[str, str] = dict.fromkeys(tokens, "")
        self.keys: dict[str, str] = {}  # by device
        self.asked: list[str] = []  # "token", "key" or "certificate"
        self.dead_keys: set[str] = set()
        self.answers = True
        self.loses_answers = False
        self.takes_certificates = True
        self.nonces: set[bytes] = set()

    async def begin(self) -> bytes:
        self._require_available()
        nonce = f"nonce {len(self.asked)}".encode()
        self.nonces.add(nonce)
        return nonce

    async def enrol(
        self, token: str, nonce: bytes, device_id: str, csr: bytes, signature: bytes
    ) -> tuple[str, IssuedCertificate]:
        self._require_available()
        if nonce not in self.nonces:
            raise TooLate("the nonce is spent")
        self.nonces.remove(nonce)
        request = Request(csr)
        request.require_signature(nonce, signature)
        self.asked.append("token" if token else "key")
        if request.key_sha256 in self.dead_keys:
            raise NotAllowed("the key was revoked")
        if token:
            if self.used_by.setdefault(token, "?") not in ("", request.key_sha256):
                raise NotAllowed("the token is spent")
            self.used_by[token] = request.key_sha256
            device_id = device_id or "chosen-1"
            self.keys[device_id] = request.key_sha256
        elif self.keys.get(device_id) != request.key_sha256:
            raise NotAllowed("not the device's key")
        if self.loses_answers:
            raise Unavailable("no answer")
        return device_id, self._issued(request, device_id)

    async def renew(self, csr: bytes) -> IssuedCertificate:
        self._require_available()
        if not self.takes_certificates:
            raise Unavailable("handshake failed")
        self.asked.append("certificate")
        return self._issued(Request(csr), "camera")

    def _issued(self, request: Request, device_id: str) -> IssuedCertificate:
        identity = Identity(Kind.DEVICE, device_id)
        issued = self.issuer.issue(request.key, identity, NOW, NOW + timedelta(days=1))
        return IssuedCertificate(issued.pem, self.issuer.certificate, 0.6 * DAY, DAY)

    def _require_available(self) -> None:
        if not self.answers:
            raise Unavailable("no answer")


class Clocks:
    """The wall clock and the monotonic clock of a device."""

    def __init__(self) -> None:
        self.wall = 1e9
        self.monotonic = 50.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.pass_(seconds)
        await asyncio.sleep(0)

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


class Device:
    """The folder and clocks of a device, which a test can open several times."""

    def __init__(self, folder: Path) -> None:
        own = folder / "state" / "identity"
        self.files = TlsFiles(own / "certificate.pem", own / "key.pem", own / "authority.pem")
        self.configured = folder / "configured.pem"
        self.configured.write_bytes(b"-----configured-----")
        self.clocks = Clocks()

    def open(self) -> OwnCertificate:
        clocks = self.clocks
        return OwnCertificate(
            self.files, self.configured, lambda: clocks.wall, lambda: clocks.monotonic
        )

    async def enrol(
        self, coordinator: Coordinator, token: str = TOKEN, wished_id: str = "camera"
    ) -> str:
        enrolment = self.open()
        try:
            return await enrolment.enrol(coordinator, token, wished_id)
        finally:
            enrolment.close()

    def name_in_certificate(self) -> str:
        certificate = x509.load_pem_x509_certificate(self.files.certificate.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return str(names.value.get_values_for_type(x509.UniformResourceIdentifier)[0])

    async def stay(self, coordinator: Coordinator, renewals: int) -> None:
        """Run the device until it has renewed its certificate this number of times."""
        enrolment = self.open()
        done = asyncio.Event()
        remaining = renewals

        async def renewed() -> None:
            nonlocal remaining
            remaining -= 1
            if remaining == 0:
                done.set()
                await asyncio.sleep(3600)

        async def patiently(once: Callable[[], Awaitable[None]]) -> None:
            await once()

        staying = asyncio.create_task(
            enrolment.stay(coordinator.renew, coordinator, patiently, renewed, self.clocks.sleep)
        )
        waiting = asyncio.create_task(done.wait())
        try:
            await asyncio.wait({staying, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if staying.done():
                staying.result()
        finally:
            for task in (staying, waiting):
                task.cancel()
            await asyncio.gather(staying, waiting, return_exceptions=True)
            enrolment.close()


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator(TOKEN)


async def test_a_token_gives_a_certificate_and_is_shown_once(
    device: Device, coordinator: Coordinator
) -> None:
    assert await device.enrol(coordinator) == "camera"
    assert device.name_in_certificate() == "spiffe://hfmds/device/camera"
    assert await device.enrol(coordinator) == "camera"
    assert await device.enrol(coordinator, token="") == "camera"
    assert coordinator.asked == ["token"]


async def test_the_key_file_is_readable_by_its_owner_only(
    device: Device, coordinator: Coordinator
) -> None:
    await device.enrol(coordinator)
    assert stat.S_IMODE(device.files.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(device.files.key.parent.stat().st_mode) == 0o700


async def test_the_device_trusts_the_configured_and_the_fleets_authority(
    device: Device, coordinator: Coordinator
) -> None:
    await device.enrol(coordinator)
    trusted = device.files.authority.read_bytes()
    assert b"configured" in trusted
    assert coordinator.issuer.certificate in trusted
    device.configured.write_bytes(b"-----configured again-----")
    device.open().close()
    assert b"configured again" in device.files.authority.read_bytes()


async def test_without_a_token_the_error_names_the_missing_setting(
    device: Device, coordinator: Coordinator
) -> None:
    with pytest.raises(ConfigurationError, match="HFMDS_ENROL_TOKEN"):
        await device.enrol(coordinator, token="")


async def test_the_coordinator_may_choose_the_id(device: Device, coordinator: Coordinator) -> None:
    assert await device.enrol(coordinator, wished_id="") == "chosen-1"
    assert await device.enrol(coordinator, wished_id="") == "chosen-1"
    with pytest.raises(ConfigurationError, match=r"enrolled as 'chosen-1'.*'other'"):
        await device.enrol(coordinator, wished_id="other")


async def test_after_a_lost_answer_the_device_enrols_with_the_same_key(
    device: Device, coordinator: Coordinator
) -> None:
    enrolment = device.open()
    await enrolment.enrol(coordinator, TOKEN, "camera")
    enrolment.close()
    (device.files.certificate.parent / "terms.json").unlink()  # as after a kill before the write
    assert await device.enrol(coordinator) == "camera"
    assert coordinator.asked == ["token", "token"]


async def test_a_new_token_enrols_with_a_new_key(device: Device, coordinator: Coordinator) -> None:
    await device.enrol(coordinator)
    first = device.files.key.read_bytes()
    coordinator.used_by["second"] = ""
    await device.enrol(coordinator, token="second")
    assert coordinator.asked == ["token", "token"]
    assert device.files.key.read_bytes() != first
    device.files.read()  # key and certificate fit
    await device.enrol(coordinator, token="second")
    assert coordinator.asked == ["token", "token"]


@pytest.mark.parametrize(
    "refusal",
    [NotAllowed("is spent"), Conflict("with another key"), LimitExceeded("there are too many")],
)
async def test_a_token_for_other_ids_does_not_stop_an_enrolled_device(
    device: Device, coordinator: Coordinator, refusal: HfmdsError
) -> None:
    class Strict(Coordinator):
        async def enrol(self, *_: object) -> tuple[str, IssuedCertificate]:
            raise refusal

    await device.enrol(coordinator)
    key = device.files.key.read_bytes()
    assert await device.enrol(Strict(), token="second") == "camera"
    assert device.files.key.read_bytes() == key
    device.files.read()  # key and certificate fit


async def test_a_key_that_was_revoked_before_the_device_heard_of_its_certificate_is_replaced(
    device: Device, coordinator: Coordinator
) -> None:
    await device.enrol(coordinator)
    coordinator.used_by |= {"second": "", "third": ""}
    coordinator.loses_answers = True
    with pytest.raises(Unavailable):
        await device.enrol(coordinator, token="second")
    coordinator.loses_answers = False
    coordinator.dead_keys.add(coordinator.keys["camera"])
    assert await device.enrol(coordinator, token="third") == "camera"
    assert coordinator.used_by["third"] == ""
    await device.enrol(coordinator, token="third")
    assert coordinator.used_by["third"] == coordinator.keys["camera"]
    device.files.read()  # key and certificate fit


async def test_a_device_killed_before_moving_its_new_key_moves_it_at_the_next_start(
    device: Device, coordinator: Coordinator
) -> None:
    await device.enrol(coordinator)
    first = device.files.key.read_bytes()
    coordinator.used_by["second"] = ""
    await device.enrol(coordinator, token="second")
    second = device.files.key.read_bytes()
    (device.files.key.parent / "next-key.pem").write_bytes(second)
    device.files.key.write_bytes(first)
    device.open().close()
    assert device.files.key.read_bytes() == second


@pytest.mark.parametrize("token", ["second", ""], ids=["spent", "gone"])
async def test_a_device_killed_before_writing_its_terms_continues_with_the_new_key(
    device: Device, coordinator: Coordinator, token: str
) -> None:
    await device.enrol(coordinator)
    terms = device.files.key.parent / "terms.json"
    first, written = device.files.key.read_bytes(), terms.read_bytes()
    coordinator.used_by["second"] = ""
    await device.enrol(coordinator, token="second")
    second = device.files.key.read_bytes()
    (device.files.key.parent / "next-key.pem").write_bytes(second)
    device.files.key.write_bytes(first)
    terms.write_bytes(written)
    assert await device.enrol(coordinator, token=token) == "camera"
    assert device.files.key.read_bytes() == second
    device.files.read()  # key and certificate fit


async def test_a_refused_token_does_not_stop_a_device_with_a_certificate(
    device: Device, coordinator: Coordinator
) -> None:
    await device.enrol(coordinator)
    first = device.files.key.read_bytes()
    assert await device.enrol(coordinator, token="of another device") == "camera"
    assert device.files.key.read_bytes() == first
    device.files.read()


async def test_the_device_renews_its_certificate_in_time(
    device: Device, coordinator: Coordinator
) -> None:
    await device.enrol(coordinator)
    await device.stay(coordinator, renewals=2)
    assert coordinator.asked == ["token", "certificate", "certificate"]
    assert sum(device.clocks.slept) == pytest.approx(2 * 0.6 * DAY)
    assert max(device.clocks.slept) <= 60


@pytest.mark.parametrize("jump", [-10 * DAY, 30 * DAY])
async def test_a_clock_that_jumped_renews_at_once(
    device: Device, coordinator: Coordinator, jump: float
) -> None:
    await device.enrol(coordinator)
    device.clocks.wall += jump
    await device.stay(coordinator, renewals=1)
    assert device.clocks.slept == []


async def test_renewal_works_with_a_stopped_wall_clock(
    device: Device, coordinator: Coordinator
) -> None:
    enrolment = device.open()
    await enrolment.enrol(coordinator, TOKEN, "camera")
    device.clocks.monotonic += 0.6 * DAY
    assert enrolment.renew_in_seconds() <= 0
    enrolment.close()


async def test_an_expired_certificate_is_renewed_by_the_key(
    device: Device, coordinator: Coordinator
) -> None:
    await device.enrol(coordinator)
    device.clocks.pass_(30 * DAY)
    coordinator.takes_certificates = False
    await device.stay(coordinator, renewals=1)
    assert coordinator.asked == ["token", "key"]


async def test_an_unavailable_coordinator_is_reported_to_the_caller(
    device: Device, coordinator: Coordinator
) -> None:
    await device.enrol(coordinator)
    device.clocks.pass_(DAY)
    coordinator.answers = False
    with pytest.raises(Unavailable, match="no answer"):
        await device.stay(coordinator, renewals=1)


async def test_a_certificate_that_cannot_be_saved_is_requested_again(
    device: Device, coordinator: Coordinator
) -> None:
    await device.enrol(coordinator)
    device.clocks.pass_(DAY)
    device.files.certificate.unlink()
    device.files.certificate.mkdir()  # writing fails, as on a full disk
    with pytest.raises(Unavailable, match="Is a directory"):
        await device.stay(coordinator, renewals=1)


async def test_a_half_replaced_authority_does_not_end_the_device(
    device: Device, coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    await device.enrol(coordinator)
    with closing(device.open()) as enrolment:
        device.configured.unlink()
        device.clocks.pass_(DAY)
        await enrolment.catch_up(coordinator.renew, coordinator)
        assert f"cannot read {device.configured}" in caplog.text
        assert enrolment.renew_in_seconds() == 0
        device.configured.write_bytes(b"-----configured-----")
        await enrolment.catch_up(coordinator.renew, coordinator)
    assert enrolment.renew_in_seconds() == 0.6 * DAY


@pytest.mark.parametrize("spoilt", [b"", b"rot"])
async def test_a_damaged_certificate_is_renewed_by_the_key(
    device: Device, coordinator: Coordinator, spoilt: bytes
) -> None:
    await device.enrol(coordinator)
    device.files.certificate.write_bytes(spoilt)

    async def renew(csr: bytes) -> IssuedCertificate:
        raise ConfigurationError("the TLS files cannot be read")  # as the channel does

    with closing(device.open()) as enrolment:
        await enrolment.catch_up(renew, coordinator)
    assert coordinator.asked == ["token", "key"]
    device.files.read()  # key and certificate fit


class WithoutCertificates(Coordinator):
    """A coordinator that issues no certificates at the moment."""

    def __init__(self, refusal: HfmdsError, *, takes_certificates: bool) -> None:
        super().__init__()
        self.refusal = refusal
        self.takes_certificates = takes_certificates

    def _issued(self, request: Request, device_id: str) -> IssuedCertificate:
        raise self.refusal


NO_CERTIFICATES = pytest.mark.parametrize(
    "refusal", [WrongState("there is no device issuer"), LimitExceeded("there are too many")]
)


@NO_CERTIFICATES
@pytest.mark.parametrize("takes_certificates", [True, False])
async def test_a_coordinator_that_cannot_issue_yet_is_asked_again(
    device: Device, coordinator: Coordinator, refusal: HfmdsError, takes_certificates: bool
) -> None:
    await device.enrol(coordinator)
    device.clocks.pass_(DAY)
    without_certificates = WithoutCertificates(refusal, takes_certificates=takes_certificates)
    without_certificates.keys = coordinator.keys
    with pytest.raises(Unavailable, match=str(refusal)):
        await device.stay(without_certificates, renewals=1)


@NO_CERTIFICATES
async def test_a_device_starts_with_a_valid_certificate_without_renewal(
    device: Device, coordinator: Coordinator, refusal: HfmdsError, caplog: pytest.LogCaptureFixture
) -> None:
    device.clocks.wall = NOW.timestamp()
    await device.enrol(coordinator)
    without_certificates = WithoutCertificates(refusal, takes_certificates=True)

    async def start() -> None:
        with closing(device.open()) as enrolment:
            await enrolment.catch_up(without_certificates.renew, without_certificates)

    device.clocks.pass_(0.9 * DAY)  # renewal is due
    await start()
    assert f"current certificate: the coordinator issues no certificate now: {refusal}" in (
        caplog.text
    )
    device.clocks.pass_(0.2 * DAY)
    with pytest.raises(Unavailable, match=str(refusal)):
        await start()


async def test_a_revoked_device_gets_the_reason(device: Device, coordinator: Coordinator) -> None:
    await device.enrol(coordinator)
    device.clocks.pass_(DAY)
    coordinator.takes_certificates = False
    coordinator.keys.clear()
    with pytest.raises(NotAllowed, match="not the device's key"):
        await device.stay(coordinator, renewals=1)


async def test_an_expired_nonce_is_retried(device: Device, coordinator: Coordinator) -> None:
    class Slow(Coordinator):
        async def begin(self) -> bytes:
            return b"of yesterday"

    with pytest.raises(Unavailable, match="nonce ran out"):
        await device.enrol(Slow(TOKEN))


def test_two_processes_do_not_share_an_identity(device: Device) -> None:
    first = device.open()
    with pytest.raises(ConfigurationError, match="in use by another process"):
        device.open()
    first.close()
    device.open().close()


async def test_damaged_terms_are_an_error(device: Device, coordinator: Coordinator) -> None:
    await device.enrol(coordinator)
    (device.files.certificate.parent / "terms.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"terms.json is not readable.*enrol"):
        device.open()


async def test_the_error_of_a_damaged_key_names_the_remedy(
    device: Device, coordinator: Coordinator
) -> None:
    await device.enrol(coordinator)
    device.files.key.write_bytes(b"rot")
    with pytest.raises(ConfigurationError, match=r"key\.pem"):
        device.open()
    device.files.key.write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"key\.pem"):
        device.open()
