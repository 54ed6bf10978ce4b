"""Which visitors the web page admits."""

from __future__ import annotations

import ssl
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from coordinator.settings import CoordinatorSettings
from coordinator.web.page_access import COOKIE
from coordinator.web.sessions import Sessions
from hfmds.errors import ConfigurationError, Unavailable
from hfmds.pki.authority import Authority
from hfmds.service.process.settings import load_settings
from hfmds.service.security.certificates import read_own_certificate
from hfmds.service.security.exclusions import Exclusions
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.security.tls import TlsFiles
from tests.coordinator.web.web_bench import WebBench, web_bench
from tests.support.fleet_certificates import DAY, FleetCertificates, chained

VERA = Identity(Kind.VIEWER, "vera")


class TokensInMemory:
    """Knows tokens until they are revoked."""

    def __init__(self) -> None:
        self.known = {"good": VERA, "of-a-device": Identity(Kind.DEVICE, "camera")}

    def __call__(self, token: str) -> Identity | None:
        return self.known.get(token)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> FleetCertificates:
    return FleetCertificates.create(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def server(fleet: FleetCertificates) -> TlsFiles:
    return fleet.of(Identity(Kind.SERVICE, "coordinator"))


def browser(authority: Path, own: TlsFiles | None = None) -> ssl.SSLContext:
    """Make the TLS context of a browser, with a certificate to show."""
    context = ssl.create_default_context(cafile=authority)
    if own:
        context.load_cert_chain(own.certificate, own.key)
    return context


def secure_page(
    folder: Path, server: TlsFiles, own: TlsFiles | None = None, **options: Any
) -> AbstractAsyncContextManager[WebBench]:
    """Serve the page with TLS to a visitor who may have a certificate."""
    context = browser(server.authority, own)
    return web_bench(folder, client_tls=context, tls=server, **options)


async def test_a_visitor_without_identity_sees_only_the_login_form(
    tmp_path: Path, server: TlsFiles
) -> None:
    async with secure_page(tmp_path, server, find_admin=TokensInMemory()) as page:
        for path in ("/api/status", "/api/runs", "/api/devices", "/api/runs/run/gallery/a.png"):
            status, reason = await page.refused(path)
            assert (status, reason) == (
                401,
                "log in with an admin's token, or show an admin's certificate",
            )
        async with page.client.get("/") as answer:  # redirects to the form
            assert answer.url.path == "/login"
            assert 'type="password"' in await answer.text()
        async with page.client.get("/static/style.css") as answer:
            assert answer.status == 200


async def test_refusals_do_not_tell_strangers_the_address_of_the_database(
    tmp_path: Path, server: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    def lose(token: str) -> Identity | None:
        raise Unavailable("postgresql://me@db.internal is away", public="the database is away")

    async with secure_page(tmp_path, server, find_admin=lose) as page:
        bearer = {"Authorization": "Bearer good"}
        refusal = await page.refused("/api/status", headers=bearer)
        assert refusal == (503, "the database is away")
    reasons = [vars(r)["reason"] for r in caplog.records if r.getMessage() == "page refused"]
    assert reasons == ["postgresql://me@db.internal is away"]


async def test_without_tokens_only_certificates_are_accepted(
    tmp_path: Path, server: TlsFiles
) -> None:
    async with secure_page(tmp_path, server) as page:
        assert (await page.refused("/"))[0] == 401
        assert (await page.refused("/login"))[0] == 404


async def test_an_admin_is_identified_by_a_certificate(
    tmp_path: Path, fleet: FleetCertificates, server: TlsFiles
) -> None:
    async with secure_page(tmp_path, server, own=fleet.of(Identity(Kind.VIEWER, "vera"))) as page:
        assert (await page.get("/api/me"))["identity"] == "admin/viewer vera"
        async with page.client.get("/") as answer:
            assert answer.url.path == "/"


async def test_a_device_may_not_see_the_page(
    tmp_path: Path, fleet: FleetCertificates, server: TlsFiles
) -> None:
    async with secure_page(tmp_path, server, own=fleet.of(Identity(Kind.DEVICE, "camera"))) as page:
        status, reason = await page.refused("/api/runs")
        assert status == 403
        assert reason.startswith("device camera may not call ListRuns; it is for admin/operator")


async def test_a_revoked_certificate_is_refused(
    tmp_path: Path, fleet: FleetCertificates, server: TlsFiles
) -> None:
    own, gate = fleet.of(Identity(Kind.OWNER, "olga")), Gate()

    async with secure_page(tmp_path, server, own=own, gate=gate) as page:
        await page.get("/api/runs")
        serial = read_own_certificate(own.certificate.read_bytes()).serial
        gate.replace(Exclusions(serials=frozenset({serial})))
        status, reason = await page.refused("/api/runs")
        assert (status, reason.endswith(f"{serial} was revoked")) == (403, True)


async def test_a_certificate_from_another_authority_gets_no_connection(
    tmp_path: Path, server: TlsFiles
) -> None:
    own = FleetCertificates.create(tmp_path).of(Identity(Kind.OWNER, "olga"))

    async with secure_page(tmp_path, server, own=own) as page:
        with pytest.raises(aiohttp.ClientError):
            await page.refused("/api/runs")


@pytest.mark.parametrize("leaf", [Kind.OWNER, Kind.VIEWER, Kind.SERVICE])
@pytest.mark.parametrize("stolen", ["issuer_pair", "service_issuer_pair"])
async def test_an_issuer_cannot_create_admins_through_an_intermediate_authority(
    tmp_path: Path, fleet: FleetCertificates, server: TlsFiles, stolen: str, leaf: Kind
) -> None:
    """Prove this for a direct chain and for an authority without a unit in its name."""
    pair = getattr(fleet, stolen)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "unheard of")])
    through = fleet.files("through", chained(pair, name, Identity(leaf, "mallory")))
    direct_pair = Authority(pair).pair(Identity(leaf, "mallory"), datetime.now(UTC), DAY)
    direct = fleet.files("direct", direct_pair)

    for own in (through, direct):
        async with secure_page(tmp_path / own.certificate.stem, server, own=own) as page:
            try:
                status, _ = await page.refused("/api/runs")
            except aiohttp.ClientError:
                continue  # TLS refused the chain
            assert status in (401, 403)


async def test_a_script_authenticates_with_a_token(tmp_path: Path, server: TlsFiles) -> None:
    async with secure_page(tmp_path, server, find_admin=TokensInMemory()) as page:
        good = {"Authorization": "Bearer good"}
        assert (await page.get("/api/me", headers=good))["identity"] == "admin/viewer vera"
        for wrong in (
            "Bearer bad",
            "Bearer ",
            "Basic good",
            "good",
            "Bearer ü",
            "Bearer " + "a" * 600,
        ):
            assert (await page.refused("/api/runs", headers={"Authorization": wrong}))[0] == 401
        device = {"Authorization": "Bearer of-a-device"}
        assert (await page.refused("/api/runs", headers=device))[0] == 403


async def log_in(page: WebBench, token: str, **options: Any) -> aiohttp.ClientResponse:
    form = {"token": token}
    return await page.client.post("/login", data=form, allow_redirects=False, **options)


async def test_a_token_opens_a_session(tmp_path: Path, server: TlsFiles) -> None:
    tokens = TokensInMemory()

    async with secure_page(tmp_path, server, find_admin=tokens) as page:
        answer = await log_in(page, " good ")
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        cookie = answer.cookies[COOKIE]
        assert cookie["secure"]
        assert cookie["httponly"]
        assert (cookie["samesite"], cookie["path"], cookie["domain"]) == ("Strict", "/", "")
        assert (len(cookie.value), cookie["max-age"]) == (43, "43200")
        assert "good" not in cookie.value
        assert (await page.get("/api/me"))["identity"] == "admin/viewer vera"
        del tokens.known["good"]  # the token is revoked
        assert (await page.refused("/api/status"))[0] == 401
        tokens.known["good"] = VERA
        assert (await page.refused("/api/status"))[0] == 401, "the session has ended"


async def test_a_session_ends_at_logout_or_after_twelve_hours(
    tmp_path: Path, server: TlsFiles
) -> None:
    async with secure_page(tmp_path, server, find_admin=TokensInMemory()) as page:
        answer = await log_in(page, "good")
        stolen = {"Cookie": f"{COOKIE}={answer.cookies[COOKIE].value}"}
        await page.get("/api/runs", headers=stolen)
        async with page.client.post("/logout", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/login")
            assert answer.cookies[COOKIE]["max-age"] == "0"
        assert (await page.refused("/api/runs", headers=stolen))[0] == 401
        await log_in(page, "good")
        page.clock.ahead_seconds = 12 * 3600 - 60
        await page.get("/api/runs")
        page.clock.ahead_seconds = 12 * 3600 + 1
        assert (await page.refused("/api/runs"))[0] == 401


async def test_wrong_tokens_are_refused_and_then_throttled(
    tmp_path: Path,
    server: TlsFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async with secure_page(tmp_path, server, find_admin=TokensInMemory()) as page:
        for token, status in (("bad", 401), ("", 401), ("of-a-device", 403), ("<b>", 401)):
            answer = await log_in(page, token)
            assert (token, answer.status) == (token, status)
            assert "Set-Cookie" not in answer.headers
            assert "<b>" not in await answer.text()
        assert (await log_in(page, "bad")).status == 401
        answer = await log_in(page, "good")
        assert answer.status == 429
        assert "too many tries" in await answer.text()
        page.clock.ahead_seconds = 60
        assert (await log_in(page, "good")).status == 303
    assert [record.getMessage() for record in caplog.records].count("login refused") == 5


async def test_cross_site_and_oversized_forms_are_refused(tmp_path: Path, server: TlsFiles) -> None:
    async with secure_page(tmp_path, server, find_admin=TokensInMemory()) as page:
        answer = await log_in(page, "good", headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status == 403
        answer = await log_in(page, "a" * 5000)
        assert answer.status == 400
        answer = await log_in(page, "a" * 600)
        assert (answer.status, "this is no token" in await answer.text()) == (400, True)
        assert (await log_in(page, "good", headers={"Sec-Fetch-Site": "same-origin"})).status == 303
        for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 303)):
            await page.get("/api/runs")  # the visitor is still logged in
            headers = {"Sec-Fetch-Site": site}
            answer = await page.client.post("/logout", headers=headers, allow_redirects=False)
            assert (site, answer.status) == (site, status)


async def test_a_page_on_loopback_refuses_other_host_names(tmp_path: Path) -> None:
    async with web_bench(tmp_path) as page:
        for name in ("127.0.0.1:7403", "localhost", "[::1]:80", "localhost:1"):
            await page.get("/api/runs", headers={"Host": name})
        status, reason = await page.refused("/api/runs", headers={"Host": "evil.example:7403"})
        assert status == 403
        assert "'evil.example:7403' is not a name of it" in reason
        assert (await page.refused("/", headers={"Host": "127.0.0.1.evil.example"}))[0] == 403


async def test_replaced_certificates_apply_from_the_next_connection(
    tmp_path: Path, fleet: FleetCertificates
) -> None:
    files = fleet.of(Identity(Kind.SERVICE, "rotating"))
    old_viewer = fleet.of(Identity(Kind.VIEWER, "vera"))
    new_fleet = FleetCertificates.create(tmp_path)

    async with secure_page(tmp_path, files, own=old_viewer) as page:
        await page.get("/api/runs")
        replacement = new_fleet.of(Identity(Kind.SERVICE, "replacement"))
        viewer = new_fleet.of(Identity(Kind.VIEWER, "newcomer"))
        for old, new in (
            (files.authority, replacement.authority),
            (files.certificate, replacement.certificate),
            (files.key, replacement.key),
        ):
            new.replace(old)
        # A viewer of the old authority and the new server refuse each other.
        connector = aiohttp.TCPConnector(ssl=browser(old_viewer.authority, old_viewer))
        async with aiohttp.ClientSession(page.server.address, connector=connector) as client:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await client.get("/api/runs")
        trusting = browser(viewer.authority, old_viewer)
        async with aiohttp.ClientSession(
            page.server.address, connector=aiohttp.TCPConnector(ssl=trusting)
        ) as client:
            with pytest.raises(aiohttp.ClientError):
                await client.get("/api/runs")
        context = browser(viewer.authority, viewer)
        async with (
            aiohttp.ClientSession(
                page.server.address, connector=aiohttp.TCPConnector(ssl=context)
            ) as client,
            client.get("/api/me") as answer,
        ):
            assert (await answer.json())["identity"] == "admin/viewer newcomer"


def test_sessions_are_bounded() -> None:
    sessions = Sessions(lambda: 0.0, most=2)
    names = [sessions.open(f"token-{i}") for i in range(3)]
    assert [sessions.token(name) for name in names] == [None, "token-1", "token-2"]
    assert sessions.token("") is None
    sessions.end("unknown")
    sessions.end(names[1])
    assert sessions.token(names[1]) is None


def test_other_machines_see_the_page_only_with_tls(server: TlsFiles) -> None:
    with pytest.raises(ConfigurationError, match="HFMDS_WEB_LISTEN"):
        load_settings(CoordinatorSettings, ["--web-listen", "0.0.0.0:7403"])
    flags = ["--tls-certificate", str(server.certificate), "--tls-key", str(server.key)]
    for options in (["--insecure"], [*flags, "--tls-authority", str(server.authority)]):
        settings = load_settings(CoordinatorSettings, ["--web-listen", "0.0.0.0:7403", *options])
        assert settings.web_listen == "0.0.0.0:7403"
    assert load_settings(CoordinatorSettings, []).web_listen is None
