"""The gate refuses excluded callers: at the next call, and in the middle of a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hfmds.errors import NotAllowed, TooLate, Unavailable
from hfmds.service.client.channel import Peer, call, open_channel, translating
from hfmds.service.security.access import DEVICE, IN_QUARANTINE, STRANGERS_TOO, VIEWER
from hfmds.service.security.caller import Caller
from hfmds.service.security.certificates import Certificate, read_own_certificate
from hfmds.service.security.exclusions import Exclusions
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.security.tls import TlsFiles, Trust
from tests.service.loopback import Running, Stub, running
from tests.support.fleet_certificates import DAY, FleetCertificates

NOW = datetime.now(UTC)
CAMERA = Identity(Kind.DEVICE, "camera")
PROBE = {"Unary": DEVICE, "Download": DEVICE, "Upload": DEVICE, "Wait": DEVICE, "Abort": VIEWER}
FOR_EVER = 2**40
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def serial(files: TlsFiles) -> str:
    return read_own_certificate(files.certificate.read_bytes()).serial


async def talk(
    fleet: FleetCertificates,
    caller: TlsFiles | Trust | None,
    conversation: Callable[[Peer, Stub, Running], Awaitable[Any]],
    **given: Any,
) -> Any:
    """Run a conversation of a caller with a server of the fleet."""
    server = fleet.of(Identity(Kind.SERVICE, "tester")) if caller else None
    async with running(tls=server, **{"access": PROBE, **given}) as it:
        peer = Peer("tester", it.server.address, "HFMDS_TESTER", caller)
        channel = open_channel(peer)
        try:
            return await conversation(peer, Stub(channel), it)
        finally:
            await channel.close()


async def unary(peer: Peer, stub: Stub, _: Running) -> Any:
    return await call(peer, stub.unary, b"hello", timeout_seconds=30)


# --- certificates -------------------------------------------------------------------------------


async def test_a_dead_certificate_is_refused_and_another_of_the_same_device_is_not(
    fleet: FleetCertificates,
) -> None:
    first, gate = fleet.of(CAMERA), Gate()
    gate.replace(Exclusions(serials=frozenset({serial(first)})))
    with pytest.raises(NotAllowed, match=f"{serial(first)} was revoked"):
        await talk(fleet, first, unary, gate=gate)
    assert await talk(fleet, fleet.of(CAMERA), unary, gate=gate) == b"hello"


async def test_a_dead_certificate_asks_for_no_health_and_no_contract(
    fleet: FleetCertificates,
) -> None:
    camera, gate = fleet.of(CAMERA), Gate()

    async def look_around(peer: Peer, stub: Stub, it: Running) -> None:
        channel = open_channel(peer)
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        reflect: Any = channel.stream_stream(REFLECTION)
        try:
            assert await check(b"")
            gate.replace(Exclusions(serials=frozenset({serial(camera)})))
            with pytest.raises(NotAllowed, match="was revoked"), translating(peer):
                await check(b"")
            for stream in (watch(b""), reflect()):
                with pytest.raises(NotAllowed, match="was revoked"), translating(peer):
                    await stream.read()
        finally:
            await channel.close()

    await talk(fleet, camera, look_around, gate=gate)


async def test_a_revoked_device_is_refused_until_it_has_a_later_certificate(
    fleet: FleetCertificates,
) -> None:
    begins = read_own_certificate(fleet.of(CAMERA).certificate.read_bytes()).begins
    gate = Gate()
    gate.replace(Exclusions(dead_until={"camera": begins}))
    with pytest.raises(NotAllowed, match="device camera was revoked"):
        await talk(fleet, fleet.of(CAMERA), unary, gate=gate)
    gate.replace(Exclusions(dead_until={"camera": begins - 1, "phone": FOR_EVER}))
    assert await talk(fleet, fleet.of(CAMERA), unary, gate=gate) == b"hello"


async def test_a_certificate_that_runs_out_during_a_connection_is_refused(
    fleet: FleetCertificates,
) -> None:
    later = (NOW + 2 * DAY).timestamp()
    with pytest.raises(Unavailable, match="has expired"):
        await talk(fleet, fleet.of(CAMERA), unary, gate=Gate(lambda: later))


@pytest.mark.parametrize("days", [-1, 400, 5000])
async def test_a_device_whose_clock_is_behind_believes_servers_until_their_end(
    tmp_path: Path, days: int
) -> None:
    """The device has the clock of this machine. The fleet's clock is so many days ahead."""
    fleets_now = NOW + days * DAY
    service = Identity(Kind.SERVICE, "tester")

    async def reach() -> Any:
        ahead = FleetCertificates.create(tmp_path, fleets_now)
        pair = ahead.authority.pair(service, fleets_now, DAY / 2, ["127.0.0.1"])
        server = ahead.files("ahead", pair)
        async with running(
            tls=server, access={"Unary": STRANGERS_TOO}, holder=holder, supervised=False
        ) as it:
            address = it.server.address
            peer = Peer("tester", address, "HFMDS_TESTER", Trust(server.authority))
            channel = open_channel(peer)
            try:
                return await unary(peer, Stub(channel), it)
            finally:
                await channel.close()

    if days < 0:  # it is past the end of the server's certificate
        with pytest.raises(Unavailable):
            await reach()
    else:
        assert await reach() == b"hello"


@pytest.mark.parametrize("hosts", [["127.0.0.1"], ["localhost"], []])
async def test_nobody_believes_a_server_of_the_device_issuer(
    fleet: FleetCertificates, hosts: list[str]
) -> None:
    async def main() -> None:
        service = Identity(Kind.SERVICE, "localhost")
        pretender = fleet.files("pretender", fleet.issuer.pair(service, NOW, DAY, hosts))
        async with running(tls=pretender, access=PROBE) as it:
            address = it.server.address
            if hosts != ["127.0.0.1"]:
                address = address.replace("127.0.0.1", "localhost")
            peer = Peer("tester", address, "HFMDS_TESTER", fleet.of(CAMERA))
            channel = open_channel(peer)
            try:
                await unary(peer, Stub(channel), it)
            finally:
                await channel.close()

    with pytest.raises(Unavailable):
        await main()


# --- calls under way ----------------------------------------------------------------------------


async def test_a_call_that_waits_is_cut_when_its_caller_is_revoked(
    fleet: FleetCertificates,
) -> None:
    gate, camera = Gate(), fleet.of(CAMERA)

    async def wait(peer: Peer, stub: Stub, it: Running) -> None:
        waiting = asyncio.create_task(call(peer, stub.wait, b"", timeout_seconds=30))
        await it.probe.waiting.wait()
        gate.replace(Exclusions(dead_until={"phone": FOR_EVER}))  # somebody else's affair
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await asyncio.to_thread(gate.replace, Exclusions(dead_until={"camera": FOR_EVER}))
        with pytest.raises(NotAllowed, match="device camera was revoked"):
            await waiting
        assert it.count("Wait", "PERMISSION_DENIED") == 1

    await talk(fleet, camera, wait, gate=gate)


async def test_two_changes_at_once_cut_a_call_once(fleet: FleetCertificates) -> None:
    gate = Gate()

    async def wait(peer: Peer, stub: Stub, it: Running) -> None:
        waiting = asyncio.create_task(call(peer, stub.wait, b"", timeout_seconds=30))
        await it.probe.waiting.wait()
        gate.replace(Exclusions(dead_until={"camera": FOR_EVER}))
        gate.replace(Exclusions(dead_until={"camera": FOR_EVER, "phone": FOR_EVER}))
        with pytest.raises(NotAllowed, match="device camera was revoked"):
            await waiting

    await talk(fleet, fleet.of(CAMERA), wait, gate=gate)


async def test_a_download_is_cut_when_its_caller_is_revoked(fleet: FleetCertificates) -> None:
    gate = Gate()

    async def download(peer: Peer, stub: Stub, it: Running) -> None:
        async def take_all() -> None:
            with translating(peer):
                async for part in stub.download(b"second", timeout=30):
                    if part == b"second":  # the server has no more, and waits
                        gate.replace(Exclusions(dead_until={"camera": FOR_EVER}))

        with pytest.raises(NotAllowed, match="was revoked"):
            await take_all()
        await it.probe.stream_closed.wait()

    await talk(fleet, fleet.of(CAMERA), download, gate=gate)


async def test_a_stream_that_is_being_sent_goes_no_further(fleet: FleetCertificates) -> None:
    gate = Gate()

    async def flood(peer: Peer, stub: Stub, it: Running) -> None:
        received = []

        async def take_all() -> None:
            with translating(peer):
                async for part in stub.flood(b"", timeout=30):
                    received.append(len(part))
                    gate.replace(Exclusions(dead_until={"camera": FOR_EVER}))

        with pytest.raises(NotAllowed):
            await take_all()
        assert len(received) < 20  # what was on its way

    await talk(fleet, fleet.of(CAMERA), flood, gate=gate, access={"Flood": DEVICE})


async def test_an_upload_is_cut_when_its_caller_is_revoked(fleet: FleetCertificates) -> None:
    gate = Gate()

    async def upload(peer: Peer, stub: Stub, it: Running) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"first"
            gate.replace(Exclusions(dead_until={"camera": FOR_EVER}))
            await asyncio.sleep(60)

        with pytest.raises(NotAllowed, match="was revoked"):
            await call(peer, stub.upload, chunks(), timeout_seconds=30)

    await talk(fleet, fleet.of(CAMERA), upload, gate=gate)


async def test_a_caller_that_hangs_up_is_not_taken_for_a_cut(fleet: FleetCertificates) -> None:
    async def hang_up(peer: Peer, stub: Stub, it: Running) -> None:
        waiting = asyncio.create_task(call(peer, stub.wait, b"", timeout_seconds=30))
        await it.probe.waiting.wait()
        waiting.cancel()
        await it.counted("Wait", "CANCELLED")

    await talk(fleet, fleet.of(CAMERA), hang_up, gate=Gate())


# --- quarantine ---------------------------------------------------------------------------------

SICK = Exclusions(quarantined={"camera": "sends noise"})


async def test_a_device_in_quarantine_is_told_that_its_task_is_over(
    fleet: FleetCertificates,
) -> None:
    gate = Gate()
    gate.replace(SICK)
    with pytest.raises(TooLate, match="camera is in quarantine: sends noise") as refusal:
        await talk(fleet, fleet.of(CAMERA), unary, gate=gate)
    assert refusal.value.reason == "quarantined"


async def test_where_nobody_has_a_certificate_a_device_is_who_it_says(
    fleet: FleetCertificates,
) -> None:
    gate = Gate()
    gate.replace(SICK)

    async def main(device_id: str, admitted: Any) -> Any:
        async with running(access={"Unary": admitted}, gate=gate) as it:
            it.probe.decode = lambda data: SimpleNamespace(device_id=device_id, text=data)
            it.probe._behave = lambda request: request.text  # type: ignore[attr-defined]
            return await unary(it.peer, it.stub, it)

    assert await main("phone", DEVICE) == b"hello"
    assert await main("camera", VIEWER) == b"hello"  # an operator who speaks of it
    with pytest.raises(TooLate, match="in quarantine"):
        await main("camera", DEVICE)


async def test_who_waits_for_work_when_its_quarantine_begins_is_asked_to_ask_again() -> None:
    assert {"CheckIn", "RenewCertificate"} <= IN_QUARANTINE
    gate = Gate()
    certificate = Certificate(CAMERA, "1", 0, 2**40)
    gate.replace(SICK)
    with gate.call(certificate, in_quarantine=True):
        pass
    gate.replace(Exclusions())

    async def check_in() -> Unavailable:
        with gate.call(certificate, in_quarantine=True) as gated:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError as stop:
                reason = gated.reason_of_cut(stop)
                assert isinstance(reason, Unavailable)
                return reason
        raise AssertionError

    waiting = asyncio.create_task(check_in())
    await asyncio.sleep(0)
    gate.replace(SICK)
    refusal = await waiting
    assert refusal.retry_after_seconds == 1.0
    assert "sends noise" in str(refusal)


# --- tokens -------------------------------------------------------------------------------------


OLGA = Identity(Kind.VIEWER, "olga")


def holder(token: str) -> Caller:
    if token != "good":
        return Caller()
    return Caller(OLGA, Certificate(OLGA, "token-1", 0, FOR_EVER))


async def test_a_token_takes_the_place_of_a_certificate(fleet: FleetCertificates) -> None:
    trust = Trust(fleet.of(CAMERA).authority)
    access = {"Unary": VIEWER, "Wait": DEVICE, "Upload": STRANGERS_TOO}

    async def ask(peer: Peer, stub: Stub, it: Running) -> list[Any]:
        def shown(text: str) -> tuple[tuple[str, str], ...]:
            return (("authorization", text),)

        answers: list[Any] = [
            await stub.unary(b"hello", metadata=shown("Bearer good")),
            await stub.upload(iter([b"whoever"])),
        ]
        for text in ("Bearer bad", "good", "Basic good", f"Bearer good{' ' * 300}"):
            with pytest.raises(NotAllowed, match="names no device"), translating(peer):
                await stub.unary(b"hello", metadata=shown(text))
        with pytest.raises(NotAllowed, match="olga may not call Wait"), translating(peer):
            await stub.wait(b"", metadata=shown("Bearer good"))
        return answers

    answers = await talk(fleet, trust, ask, access=access, holder=holder, supervised=False)
    assert answers == [b"hello", b"whoever"]


async def test_a_call_with_a_token_is_cut_when_the_token_is_revoked(
    fleet: FleetCertificates,
) -> None:
    gate, trust = Gate(), Trust(fleet.of(CAMERA).authority)

    async def watch(peer: Peer, stub: Stub, it: Running) -> None:
        shown = (("authorization", "Bearer good"),)
        watching = asyncio.create_task(_ended(peer, stub.wait(b"", metadata=shown)))
        await it.probe.waiting.wait()
        gate.replace(Exclusions(serials=frozenset({"token-1"})))
        with pytest.raises(NotAllowed, match="token-1 was revoked"):
            await watching

    access = {"Wait": VIEWER}
    await talk(fleet, trust, watch, access=access, holder=holder, gate=gate, supervised=False)


async def _ended(peer: Peer, rpc: Awaitable[Any]) -> Any:
    with translating(peer):
        return await rpc


# --- lists --------------------------------------------------------------------------------------


def test_a_list_is_named_by_what_is_in_it() -> None:
    one = Exclusions({"a": 1, "b": 2}, frozenset({"1", "2"}), {"c": "x"})
    same = Exclusions({"b": 2, "a": 1}, frozenset({"2", "1"}), {"c": "x"})
    others = (Exclusions(), Exclusions({"a": 1}), Exclusions(serials=frozenset({"1"})))
    assert one.version == same.version
    assert len({it.version for it in (one, *others)}) == 4
