"""The tiers of the test suite, and real servers that any test may ask for.

`make test` runs every behaviour once, and a sample of each large matrix. The sample changes with
the commit, so that a few commits cover everything. `make test-all` passes `--full` and leaves
nothing out. Tests choose their tier by a marker: see `markers` in pyproject.toml.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import use_database
from tests.support.postgres import PostgresServer
from tests.support.s3 import S3Server
from tests.support.supervision import Launcher

# A shell without job control lets background jobs ignore Ctrl-C, and `nohup` a lost terminal. The
# programs that tests start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run full matrices and soak tests, too")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its seed
def pytest_configure(config: pytest.Config) -> None:
    """Let the commit choose the inputs of Hypothesis, too, so that a test run can be repeated.

    The inputs of `make fuzz` and `--full` are random. Hypothesis also draws constants of the
    modules that are loaded. So the same commit gives the same inputs only for the same tests.
    """
    config.stash[_LEFT_OUT] = Counter()
    random_ones = config.getoption("full") or "FUZZ_TIMES" in os.environ
    if not random_ones and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(_commit_number(config.rootpath))


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs real servers, leave out what `make test` only samples, and order files.

    Files with slow tests come first. Otherwise one process would end with a long file to itself.
    """
    for item in items:
        if _needs_a_real_server(item):
            item.add_marker("integration")
    # A person who names one test wants that test.
    if not config.getoption("full") and not any("::" in argument for argument in config.args):
        _leave_out(config, items)
    slow_files = {item.path for item in items if item.get_closest_marker("integration")}
    items.sort(key=lambda item: item.path not in slow_files)


def _needs_a_real_server(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    parameters = getattr(item, "callspec", None)
    on_postgres = parameters and parameters.params.get("database_url") == "postgresql"
    return bool(on_postgres) or not {"postgres_server", "s3_server"}.isdisjoint(fixtures)


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remove soak tests, and all but a rotating part of each matrix, from the items."""
    left_out = [item for item in items if item.get_closest_marker("soak")]
    matrices: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("matrix") and not item.get_closest_marker("soak"):
            matrices[item.nodeid.partition("[")[0]].append(item)
    choice = random.Random(_commit_number(config.rootpath))
    for cases in matrices.values():
        marker = cases[0].get_closest_marker("matrix")
        assert marker is not None
        kept = math.ceil(len(cases) / int(marker.kwargs["one_in"]))
        left_out += choice.sample(cases, len(cases) - kept)
    config.stash[_LEFT_OUT].update(item.nodeid.partition("[")[0] for item in left_out)
    config.hook.pytest_deselected(items=left_out)
    unwanted = set(left_out)
    items[:] = [item for item in items if item not in unwanted]


def _commit_number(repository: Path) -> int:
    """A number that changes with the commit; 0 outside of a git checkout."""
    command = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(answer.stdout.strip()[:8], 16)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what the sample left out."""
    config = terminalreporter.config
    left_out = config.stash[_LEFT_OUT]
    if not left_out:
        return
    terminalreporter.section("left out; `make test-all` runs everything")
    for test, cases in sorted(left_out.items()):
        terminalreporter.line(f"{cases:4} of {test}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    """Take over what a worker of xdist left out: all workers leave out the same."""
    output = getattr(node, "workeroutput", {})
    config: pytest.Config = node.config  # type: ignore[attr-defined]
    config.stash[_LEFT_OUT] = Counter(output.get("left_out", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell xdist's main process what this worker left out."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(session.config.stash[_LEFT_OUT])


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Starts programs as forks of a process that has imported them."""
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def plans_dir(pytestconfig: pytest.Config) -> Path:
    """A folder that keeps plans between test runs: each takes some twenty seconds to make."""
    folder: Path = pytestconfig.cache.mkdir("hfmds-plans")  # type: ignore[union-attr]
    return folder


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server. A test that stops it must start it again."""
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
    """An S3-compatible server. A test that stops it must start it again."""
    server = S3Server()
    server.start()
    yield server
    server.close()


@pytest.fixture
def s3_blobs_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty place. Its keys are in the environment during the test."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server.new_place()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of an empty database. The test runs with each kind."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"sqlite:///{tmp_path_factory.mktemp('database')}/state.sqlite3"


@pytest.fixture
def both_databases(database_url: str, tmp_path: Path) -> None:
    """Runs a test with each kind of database as that of its `tmp_path`."""
    use_database(tmp_path, database_url)
