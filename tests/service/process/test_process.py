import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_client.settings import EdgeSettings
from hfmds.errors import ConfigurationError
from hfmds.service.monitoring.program_metrics import software_version
from hfmds.service.process.process import published_addresses, run
from tests.support.waiting import wait_until

PROGRAM = """
import asyncio, sys
from hfmds.errors import NotFound
from hfmds.service.process.process import published_addresses, run
from hfmds.service.process.settings import ServerSettings

async def serve(settings, stop):
    if settings.listen == "fail:1":
        raise NotFound("run r7 does not exist")
    if settings.listen == "crash:1":
        raise ZeroDivisionError("boom")
    with published_addresses(settings.address_file, grpc=settings.listen):
        await stop.wait()
        if settings.listen == "stubborn:1":
            print("stubborn", flush=True)
            await asyncio.sleep(60)

sys.exit(run("coordinator", ServerSettings, serve))
"""


@contextmanager
def program(*arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    inherited = {name: value for name, value in os.environ.items() if "HFMDS_" not in name}
    process = subprocess.Popen(
        # Nothing is served there: the addresses are names of what the program should do.
        [sys.executable, "-c", PROGRAM, "--insecure", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**inherited, **variables},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_sigterm_ends_the_process_in_good_order(tmp_path: Path) -> None:
    file = tmp_path / "addresses.json"
    with program("--address-file", str(file), "--listen=a:1", HFMDS_LISTN="x") as process:
        wait_until(file.exists)
        assert json.loads(file.read_text()) == {"grpc": "a:1", "pid": process.pid}
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert not file.exists()
        assert "coordinator starts" in errors
        assert "listen=a:1" in errors
        assert (
            "HFMDS_LISTN in the environment is no setting of coordinator; "
            "did you mean HFMDS_LISTEN?"
        ) in errors
        assert "stopping on SIGTERM" in errors


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    file = tmp_path / "addresses.json"
    with program("--address-file", str(file), "--listen=stubborn:1") as process:
        wait_until(file.exists)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "stubborn\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("argument", "exit_code", "last_line"),
    [
        (
            "--listen=7401",
            2,
            (
                "coordinator: HFMDS_LISTEN (--listen) is '7401'; "
                "it must be host:port with a port from 0 to 65535"
            ),
        ),
        (
            "--listen=fail:1",
            1,
            "ERROR   hfmds.service.process.process: coordinator stops: run r7 does not exist",
        ),
    ],
)
def test_an_expected_error_is_one_line_and_an_exit_code(
    argument: str, exit_code: int, last_line: str
) -> None:
    with program(argument) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == exit_code
    assert errors.splitlines()[-1].endswith(last_line)
    assert "Traceback" not in errors


def test_the_version_is_told_without_any_settings(capsys: pytest.CaptureFixture[str]) -> None:
    async def never(settings: EdgeSettings, stop: asyncio.Event) -> None:
        raise AssertionError("it was started")

    # Without its --data an edge client would be refused.
    assert run("edge_client", EdgeSettings, never, ["--version"]) == 0
    assert capsys.readouterr().out == f"edge_client {software_version()}\n"


def test_an_unexpected_error_is_logged_with_its_traceback() -> None:
    with program("--listen=crash:1", "--log-format=json") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    entry = json.loads(errors.splitlines()[-1])
    assert entry["message"] == "coordinator stops: unexpected error"
    assert "ZeroDivisionError: boom" in entry["exception"]


def test_no_address_file_is_written_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with published_addresses(None, grpc="a:1"):
        assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_killed_predecessor_goes_before_we_are_ready(tmp_path: Path) -> None:
    file = tmp_path / "addresses.json"
    file.write_text("left by a killed predecessor")
    with program("--address-file", str(file), "--listen=fail:1") as process:
        process.wait(timeout=60)
    assert not file.exists()


def test_the_file_of_a_successor_stays(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "addresses.json"
    with published_addresses(file, grpc="a:1"):
        file.write_text("successor")
    assert file.read_text() == "successor"


def test_an_address_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigurationError, match=r"address file .*HFMDS_ADDRESS"),
        published_addresses(tmp_path / "file" / "addresses.json", grpc="a:1"),
    ):
        pass
