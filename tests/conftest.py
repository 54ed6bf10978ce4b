"""Real servers that any test may ask for; each is started once, by the first that asks.

`postgres_url` and `s3_blobs_url` are empty and the test's own. A test that stops the server (with
`postgres_server` or `s3_server`) must start it again.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import edge_client.processor  # noqa: F401  # before any test has torch compute
from tests.servers.databases import use_database
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

# A shell without job control has what it starts in the background ignore Ctrl-C, and `nohup` a lost
# terminal; and so would all programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for a real server is slower, and marked so; the files of the slow come first.

    Otherwise, at the end one process would have a long file to itself and the others nothing.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        chosen = getattr(item, "callspec", None)
        asks = {"postgres_server", "s3_server"}.intersection(fixtures)
        if asks or (chosen and chosen.params.get("database_url") == "postgresql"):
            item.add_marker("integration")
    slow = {item.path for item in items if item.get_closest_marker("integration")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of an empty database."""
    return postgres_server.new_database()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.close()


@pytest.fixture
def s3_blobs_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a place with nothing in it; the keys are in the environment during the test."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server.new_place()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of an empty database of either kind: the test is run with each."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"sqlite:///{tmp_path_factory.mktemp('database')}/state.sqlite3"


@pytest.fixture
def both_databases(database_url: str, tmp_path: Path) -> None:
    """Runs a test with each kind of database as that of its `tmp_path`."""
    use_database(tmp_path, database_url)
