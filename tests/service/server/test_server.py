import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from hfmds.errors import ConfigurationError, LimitExceeded, TooLate, Unavailable
from hfmds.service.client.channel import call
from hfmds.service.limits.limits import Limits
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.process.address import split_address
from hfmds.service.process.shutdown import Shutdown
from hfmds.service.security.access import ANYONE
from hfmds.service.server.server import GrpcServer
from tests.service.loopback import SERVICE, Running, Stub, running
from tests.support.waiting import eventually

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def refuse(request: bytes) -> bytes:
    raise TooLate(f"round {request.decode()} is over", "deadline")


def fail(request: bytes) -> bytes:
    raise ZeroDivisionError("secret detail")


async def outcome_of(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return failure.value.code(), failure.value.details()


async def drained(call: grpc.aio.UnaryStreamCall) -> list[bytes]:
    return [response async for response in call]


async def chunks(*parts: Any) -> AsyncIterator[Any]:
    for part in parts:
        yield part


async def test_all_kinds_of_calls_pass_through() -> None:
    async with running() as it:
        assert await it.stub.unary(b"x") == b"x"
        assert await it.stub.upload(chunks(b"x", b"y")) == b"xy"
        download = it.stub.download(b"z")
        assert [await download.read(), await download.read()] == [b"first", b"z"]
        assert it.count("Unary", "OK") == it.count("Upload", "OK") == 1


async def test_an_error_of_ours_is_answered_with_its_status_and_message() -> None:
    async with running(refuse) as it:
        expected = (grpc.StatusCode.ABORTED, "round 3 is over")
        assert await outcome_of(it.stub.unary(b"3")) == expected
        assert await outcome_of(it.stub.upload(chunks(b"3"))) == expected
        assert await outcome_of(drained(it.stub.download(b"3"))) == expected
        for method in ("Unary", "Upload", "Download"):
            assert it.count(method, "ABORTED") == 1
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await it.stub.unary(b"3")
        assert ("hfmds-reason", "deadline") in tuple(refused.value.trailing_metadata())


async def test_an_unexpected_error_shows_an_id_and_logs_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(fail) as it:
        code, details = await outcome_of(it.stub.unary(b""))
        assert code is grpc.StatusCode.INTERNAL
        assert it.count("Unary", "INTERNAL") == 1
    record = next(r for r in caplog.records if r.getMessage() == "call failed")
    fields = vars(record)
    assert details == f"internal error {fields['error_id']}; the log of tester has it"
    assert fields["rpc"] == f"{SERVICE}/Unary"
    assert "secret detail" in caplog.text


async def test_an_expected_error_is_logged_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running(refuse) as it:
        await outcome_of(it.stub.unary(b"3"))
    record = next(r for r in caplog.records if r.getMessage() == "call refused")
    fields = vars(record)
    assert (fields["code"], fields["reason"]) == ("ABORTED", "round 3 is over")
    assert record.exc_info is None


async def test_what_is_nobody_elses_affair_is_for_the_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def lose_the_database(request: bytes) -> bytes:
        raise Unavailable("postgresql://me@db.internal is away", public="the database is away")

    caplog.set_level(logging.INFO)
    async with running(lose_the_database) as it:
        for asked in (it.stub.unary(b""), drained(it.stub.download(b""))):
            code, details = await outcome_of(asked)
            assert (code, details) == (grpc.StatusCode.UNAVAILABLE, "the database is away")
    reasons = {vars(r)["reason"] for r in caplog.records if r.getMessage() == "call refused"}
    assert reasons == {"postgresql://me@db.internal is away"}


async def test_refusals_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(refuse) as it:
        for _ in range(300):
            await outcome_of(it.stub.unary(b"3"))
    assert 1 <= [r.getMessage() for r in caplog.records].count("call refused") < 200


async def test_an_endless_message_still_reaches_the_caller() -> None:
    def complain(request: bytes) -> bytes:
        raise LimitExceeded("ü" * 100_000)

    async with running(complain) as it:
        code, details = await outcome_of(it.stub.unary(b""))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details == "ü" * 1000


async def test_a_handler_may_answer_by_itself() -> None:
    async with running() as it:
        expected = (grpc.StatusCode.OUT_OF_RANGE, "by hand")
        assert await outcome_of(it.stub.abort(b"")) == expected
        await it.counted("Abort", "OUT_OF_RANGE")


async def test_an_unknown_method_is_refused_and_makes_no_label() -> None:
    async with running() as it:
        assert (await outcome_of(it.stub.missing(b"")))[0] is grpc.StatusCode.UNIMPLEMENTED
        assert it.count("Missing", "UNIMPLEMENTED") == 0


async def test_a_caller_that_hangs_up_ends_the_stream_at_once() -> None:
    async with running() as it:
        download = it.stub.download(b"x")
        await download.read()
        download.cancel()
        await asyncio.wait_for(it.probe.stream_closed.wait(), 30)
        await it.counted("Download", "CANCELLED")


async def test_a_caller_that_hangs_up_while_the_server_sends_is_counted_as_such() -> None:
    async with running() as it:
        flood = it.stub.flood(b"")
        await flood.read()
        await asyncio.sleep(0.1)  # nobody reads: the server is stuck between two responses
        flood.cancel()
        await asyncio.wait_for(it.probe.stream_closed.wait(), 30)
        await it.counted("Flood", "CANCELLED")
        assert it.count("Flood", "OK") == 0


async def test_calls_beyond_the_limit_are_told_to_try_again_but_health_answers() -> None:
    async with running(limits=Limits(calls=1)) as it:
        waiting = it.stub.wait(b"")
        await it.probe.waiting.wait()
        labels = {"service": SERVICE, "method": "Wait"}
        in_flight = it.registry.get_sample_value("hfmds_tester_rpc_in_flight", labels)
        assert in_flight == 1
        code, details = await outcome_of(it.stub.unary(b"x"))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert details.startswith("tester has 1 calls in flight, its limit")
        assert it.count("Unary", "UNAVAILABLE") == 1  # the channel did not try again by itself
        assert await health(it) == NOT_SERVING
        it.probe.release.set()
        assert await waiting == b"released"
        assert await it.stub.unary(b"x") == b"x"


async def test_a_caller_beyond_the_limit_is_told_when_to_try_again() -> None:
    async with running(limits=Limits(calls=1)) as it:
        waiting = it.stub.wait(b"")
        await it.probe.waiting.wait()
        with pytest.raises(Unavailable) as refused:
            await call(it.peer, it.stub.unary, b"x", timeout_seconds=30)
        assert refused.value.retry_after_seconds is not None
        it.probe.release.set()
        await waiting


async def test_calls_that_come_all_at_once_while_the_server_is_busy_wait_for_their_turn() -> None:
    """Without its option, gRPC would cancel calls that have more than a thousand before them."""
    sent = threading.Event()

    def ask(address: str) -> Counter[grpc.StatusCode]:
        own_connection = (("grpc.use_local_subchannel_pool", 1),)
        with ExitStack() as open_channels:
            channels = [
                open_channels.enter_context(grpc.insecure_channel(address, own_connection))
                for _ in range(30)
            ]
            calls = [channel.unary_unary(f"/{SERVICE}/Unary") for channel in channels]
            answers = [call.future(b"x") for call in calls for _ in range(50)]
            sent.set()
            return Counter(answer.code() for answer in answers)

    async with running(limits=Limits(calls=5000)) as it:
        with ThreadPoolExecutor(1) as asking:
            answered = asking.submit(ask, it.peer.address)
            sent.wait(60)  # the event loop stands still, and a bit longer
            time.sleep(0.3)  # noqa: ASYNC251
            assert await asyncio.wrap_future(answered) == {grpc.StatusCode.OK: 1500}


async def test_a_message_above_four_mebibytes_is_refused() -> None:
    async with running() as it:
        code, _ = await outcome_of(it.stub.unary(bytes(4 * 1024 * 1024 + 1)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_metadata_above_its_cap_are_refused() -> None:
    async with running() as it:
        code, _ = await outcome_of(it.stub.unary(b"", metadata=(("note", "x" * 32_000),)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def health(it: Running, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(it.channel)
    status: int = (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status
    return status


async def test_health_follows_readiness_for_the_server_and_each_service() -> None:
    async with running() as it:
        assert it.server.unready_reason() == "starting"
        assert [await health(it), await health(it, SERVICE)] == [NOT_SERVING] * 2
        await it.server.set_ready(True)
        assert it.server.unready_reason() is None
        assert [await health(it), await health(it, SERVICE)] == [SERVING] * 2
        await it.server.set_ready(False, "the store is away")
        assert it.server.unready_reason() == "the store is away"
        assert await health(it) == NOT_SERVING
    assert it.server.unready_reason() == "stopping"


async def test_a_watcher_of_health_hears_of_the_stop_before_the_calls_are_cut() -> None:
    async with running() as it:
        await it.server.set_ready(True)
        stub = health_pb2_grpc.HealthStub(it.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == SERVING
        stopping = asyncio.create_task(it.server.stop(0.2))
        assert (await watch.read()).status == NOT_SERVING
        await stopping


async def test_reflection_lists_the_services() -> None:
    async with running() as it:
        stub = reflection_pb2_grpc.ServerReflectionStub(it.channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = await anext(aiter(stub.ServerReflectionInfo(chunks(ask))))
        names = {service.name for service in answer.list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health"} <= names


async def test_a_port_in_use_is_refused_with_the_remedy() -> None:
    async with running() as it:
        second = GrpcServer(it.server.address, RpcMetrics("second", CollectorRegistry()))
        with pytest.raises(ConfigurationError) as refusal:
            await second.start()
        port = split_address(it.server.address)[1]
        assert str(refusal.value) == (
            f"port {port} on 127.0.0.1 is in use; stop the other process or set HFMDS_LISTEN"
        )


async def test_a_server_takes_its_port_back_at_once() -> None:
    async with running() as it:
        assert await it.stub.unary(b"x") == b"x"
    again = GrpcServer(it.server.address, RpcMetrics("again", CollectorRegistry()))
    await again.start()
    await again.stop(0)


async def test_a_call_in_flight_may_end_within_the_grace() -> None:
    async with running() as it:
        waiting = it.stub.wait(b"")
        await it.probe.waiting.wait()
        stopping = asyncio.create_task(it.server.stop(5))
        await asyncio.sleep(0.05)
        it.probe.release.set()
        assert await waiting == b"released"
        await stopping


async def test_all_ports_stop_together_and_calls_of_each_may_end() -> None:
    shutdown = Shutdown(600.0)
    async with running() as first, running() as second:
        shutdown.add(first.server.stop)
        shutdown.add(second.server.stop)
        both = (first, second)
        waiting = [it.stub.wait(b"") for it in both]
        for it in both:
            await it.probe.waiting.wait()
        stopping = asyncio.create_task(shutdown.stop())
        for it in both:  # neither waits for the calls of the other
            await eventually(lambda it=it: it.server.unready_reason() == "stopping")
            stranger = grpc.aio.insecure_channel(it.server.address)
            code, _ = await outcome_of(Stub(stranger).unary(b""))
            assert code is grpc.StatusCode.UNAVAILABLE
            await stranger.close()
        assert not stopping.done()
        for it, call_ in zip(both, waiting, strict=True):
            it.probe.release.set()
            assert await call_ == b"released"
        await stopping


async def test_a_server_is_ready_while_there_is_no_trouble() -> None:
    trouble: list[str] = []

    async def until(it: Running, reason: str | None) -> None:
        await eventually(lambda: it.server.unready_reason() == reason)

    async with running() as it:
        await it.server.set_ready(True)
        found: list[str | None] = []

        def look() -> str | None:
            found.append(trouble[-1] if trouble else None)
            return found[-1]

        async with it.server.following(look, every_seconds=0.01):
            trouble.append("the database is silent")
            await until(it, "the database is silent")
            assert await health(it) == NOT_SERVING
            trouble.append("content is silent")
            await until(it, "content is silent")
            trouble.clear()
            await until(it, None)
            assert await health(it) == SERVING
            trouble.append("the database is silent")
            await until(it, "the database is silent")
            await it.server.stop(0)
            found.clear()
            await eventually(lambda: len(found) >= 2)  # it goes on looking
            assert it.server.unready_reason() == "stopping"
            await it.server.set_ready(True)  # as one that had looked just before
            assert it.server.unready_reason() == "stopping"


async def test_a_failure_while_serving_still_stops_the_server() -> None:
    server = GrpcServer("127.0.0.1:0", RpcMetrics("first", CollectorRegistry()))
    with pytest.raises(ConfigurationError, match="wrong"):
        async with server.serving(Shutdown(0)):
            raise ConfigurationError("wrong")
    again = GrpcServer(server.address, RpcMetrics("again", CollectorRegistry()))
    async with again.serving(Shutdown(0)):
        assert again.address == server.address


async def test_the_address_is_unknown_before_the_start() -> None:
    server = GrpcServer("127.0.0.1:0", RpcMetrics("tester", CollectorRegistry()))
    with pytest.raises(RuntimeError, match="has not been started"):
        _ = server.address
    await server.stop(0)


async def test_bytes_are_counted_by_method_in_both_directions() -> None:
    async with running() as it:
        await it.stub.unary(b"four")
        await it.stub.upload(chunks(b"one", b"two"))
        download = it.stub.download(b"last")
        assert [await download.read(), await download.read()] == [b"first", b"last"]

        def moved(direction: str, method: str) -> float | None:
            return it.registry.get_sample_value(
                f"hfmds_tester_rpc_{direction}_bytes_total",
                {"service": SERVICE, "method": method},
            )

        assert (moved("received", "Unary"), moved("sent", "Unary")) == (4, 4)
        assert (moved("received", "Upload"), moved("sent", "Upload")) == (6, 6)
        assert (moved("received", "Download"), moved("sent", "Download")) == (4, 9)


async def test_methods_are_shown_before_their_first_call_and_made_up_ones_never() -> None:
    async with running(access={"Unary": ANYONE}) as it:
        methods = [f"/{SERVICE}/Missing{n}" for n in range(50)] + ["/x.y/Z", "/\n/\"'"]
        for path in methods:
            with pytest.raises(grpc.aio.AioRpcError):
                await it.channel.unary_unary(path)(b"")
        series = [
            sample.labels["method"]
            for family in it.registry.collect()
            for sample in family.samples
            if sample.name == "hfmds_tester_rpc_requests_total"
        ]
        assert Counter(series) == {"Unary": 3}  # OK and two errors, all 0
        assert it.count("Unary", "INTERNAL") == 0
