from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from prometheus_client import CollectorRegistry, Counter

from hfmds.errors import ConfigurationError
from hfmds.service.monitoring.metrics_server import MetricsServer
from hfmds.service.process.address import split_address
from tests.service.raw_http2 import connected, is_closed


class Supervised:
    """A process with a reason not to be ready."""

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


def test_other_paths_and_methods_are_refused(server: MetricsServer) -> None:
    assert ask(server, "/")[0] == 404
    assert ask(server, "/metrics", "POST")[0] == 501


def test_a_port_in_use_names_the_address_and_the_setting(server: MetricsServer) -> None:
    port = split_address(server.address)[1]
    with pytest.raises(ConfigurationError) as refusal:
        MetricsServer(server.address, CollectorRegistry(), lambda: None)
    assert f"port {port}" in str(refusal.value)
    assert "HFMDS_METRICS_LISTEN" in str(refusal.value)


def test_closing_frees_the_port(process: Supervised) -> None:
    first = MetricsServer("127.0.0.1:0", CollectorRegistry(), process.unready_reason)
    first.close()
    MetricsServer(first.address, CollectorRegistry(), process.unready_reason).close()


def test_others_are_served_while_a_connection_is_silent(server: MetricsServer) -> None:
    with connected(server.address):
        assert ask(server, "/healthz") == (200, "alive\n")


def test_a_silent_connection_is_dropped(process: Supervised) -> None:
    registry = CollectorRegistry()
    with (
        MetricsServer(
            "127.0.0.1:0", registry, process.unready_reason, client_seconds=0.2
        ) as server,
        connected(server.address) as silent,
    ):
        assert is_closed(silent)


def test_a_request_that_is_too_large_is_not_read_to_its_end(server: MetricsServer) -> None:
    with connected(server.address) as large:
        large.sendall(b"GET / HTTP/1.0\r\n" + b"a: b\r\n" * 5000)
        assert is_closed(large)  # long before the time for a request is over
    assert ask(server, "/healthz") == (200, "alive\n")
