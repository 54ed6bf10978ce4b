import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException

import pytest
from prometheus_client import CollectorRegistry, Counter

from hfmds.errors import ConfigurationError
from hfmds.service.monitoring.metrics_server import MetricsServer
from hfmds.service.process.address import split_address
from tests.service.raw_http2 import connected, is_closed


class Supervised:
    """A process that can be asked whether it is ready."""

    reason: str | None = "starting"

    def unready_reason(self) -> str | None:
        return self.reason


@pytest.fixture
def process() -> Supervised:
    return Supervised()


@pytest.fixture
def server(process: Supervised) -> Iterator[MetricsServer]:
    registry = CollectorRegistry()
    Counter("hfmds_test_things_total", "Things.", registry=registry).inc(3)
    with MetricsServer("127.0.0.1:0", registry, process.unready_reason) as server:
        yield server


def ask(server: MetricsServer, path: str, method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection(*split_address(server.address), timeout=30)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_metrics_are_served(server: MetricsServer) -> None:
    status, body = ask(server, "/metrics")
    assert status == 200
    assert "hfmds_test_things_total 3.0" in body


def test_alive_is_not_ready(server: MetricsServer, process: Supervised) -> None:
    assert ask(server, "/healthz") == (200, "alive\n")
    assert ask(server, "/readyz") == (503, "starting\n")
    process.reason = None
    assert ask(server, "/readyz?verbose") == (200, "ready\n")


def test_head_has_no_body(server: MetricsServer) -> None:
    assert ask(server, "/metrics", "HEAD") == (200, "")


def test_other_paths_and_methods_are_refused(server: MetricsServer) -> None:
    assert ask(server, "/")[0] == 404
    assert ask(server, "/metrics", "POST") == (405, "only GET and HEAD\n")
    assert ask(server, "/metrics", "BREW")[0] == 501


def test_a_port_in_use_names_the_address_and_the_setting(server: MetricsServer) -> None:
    port = split_address(server.address)[1]
    with pytest.raises(ConfigurationError) as refusal:
        MetricsServer(server.address, CollectorRegistry(), lambda: None)
    assert str(refusal.value) == (
        f"port {port} on 127.0.0.1 is in use; stop the other process or set HFMDS_METRICS_LISTEN"
    )


def test_closing_frees_the_port(process: Supervised) -> None:
    first = MetricsServer("127.0.0.1:0", CollectorRegistry(), process.unready_reason)
    first.close()
    MetricsServer(first.address, CollectorRegistry(), process.unready_reason).close()


# --- callers that mean no good ------------------------------------------------------------------


@pytest.fixture
def hasty(process: Supervised) -> Iterator[MetricsServer]:
    """A server with little patience, and places for two."""
    with MetricsServer(
        "127.0.0.1:0",
        CollectorRegistry(),
        process.unready_reason,
        connections=2,
        exchange_seconds=0.5,
    ) as server:
        yield server


def test_others_are_served_while_a_connection_is_silent(server: MetricsServer) -> None:
    with connected(server.address):
        assert ask(server, "/healthz") == (200, "alive\n")


def test_a_silent_connection_is_dropped(hasty: MetricsServer) -> None:
    with connected(hasty.address) as silent:
        assert is_closed(silent)


def test_a_byte_now_and_then_does_not_prolong_a_request(hasty: MetricsServer) -> None:
    with connected(hasty.address) as slow, ThreadPoolExecutor(1) as watching:
        ended = watching.submit(is_closed, slow)
        for byte in b"GET /healthz HTTP/1.0\r\nX: " + b"x" * 1000:
            if ended.done():
                break
            slow.send(bytes([byte]))
            time.sleep(0.02)
        assert ended.result()


@pytest.mark.parametrize(
    "sent", [b"GET /" + b"x" * 20_000, b"GET / HTTP/1.0\r\n" + b"a: b\r\n" * 5000]
)
def test_a_request_that_is_too_large_is_not_read_to_its_end(
    server: MetricsServer, sent: bytes
) -> None:
    with connected(server.address) as large:
        large.sendall(sent)
        assert is_closed(large)  # long before the time for a request is over
    assert ask(server, "/healthz") == (200, "alive\n")


def test_connections_beyond_the_limit_are_closed_until_others_are_gone(
    hasty: MetricsServer,
) -> None:
    with connected(hasty.address) as first, connected(hasty.address) as second:
        with connected(hasty.address) as third:
            assert is_closed(third)
        assert is_closed(first)
        assert is_closed(second)
    wait_until(lambda: ask(hasty, "/healthz") == (200, "alive\n"))


def test_a_client_that_does_not_take_its_answer_is_left(process: Supervised) -> None:
    registry = CollectorRegistry()
    big = Counter("hfmds_test_many_total", "Many.", ("name",), registry=registry)
    for i in range(3000):
        big.labels("x" * 3000 + str(i))
    with (
        MetricsServer(
            "127.0.0.1:0", registry, process.unready_reason, connections=1, exchange_seconds=0.5
        ) as server,
        connected(server.address) as slow,
    ):
        slow.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        wait_until(lambda: ask(server, "/healthz") == (200, "alive\n"))


def wait_until(true: Callable[[], bool]) -> None:
    """Returns when it is; a connection that is refused is not."""
    for _ in range(500):
        with suppress(OSError, HTTPException):
            if true():
                return
        time.sleep(0.02)
    pytest.fail("it never was")
