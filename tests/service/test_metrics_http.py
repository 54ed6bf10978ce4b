from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from prometheus_client import CollectorRegistry, Counter

from hfmds.errors import ConfigurationError
from hfmds.service.address import split_address
from hfmds.service.metrics_http import MetricsServer


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
    connection = HTTPConnection(*split_address(server.address), timeout=5)
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
