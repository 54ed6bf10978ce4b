"""An interrupted demo leaves no process and no folder."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[3]

pytestmark = pytest.mark.integration


class Demo:
    """`hfmds demo` as a process with temporary files in a folder of the test."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.report = folder / "report"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        script = "import sys; from hfmds.cli.main import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, "demo", "--report", str(self.report), *options],
            cwd=REPOSITORY,
            env={**os.environ, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for(self, pattern: str) -> Path:
        """Wait for a file or folder of this name in the folder of the test."""

        def found() -> Path | None:
            assert self.process.poll() is None, f"no {pattern}"
            return next(self.report.parent.glob(pattern), None)

        path = wait_until(found)
        assert path is not None
        return path

    def children(self) -> list[str]:
        """Return the command lines of running processes that use the folder of the test."""
        mark = f"TMPDIR={self.temporary}".encode()
        commands = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes():
                    commands.append((process / "cmdline").read_text())
            except OSError:  # it has ended, or belongs to another user
                continue
        return commands


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    yield from _ended(Demo(tmp_path, "--devices", "2", "--rounds", "200"))


@pytest.fixture
def short_demo(tmp_path: Path) -> Iterator[Demo]:
    tiny = ["--images-per-device", "10", "--image-size", "16", "--local-epochs", "1"]
    yield from _ended(Demo(tmp_path, "--devices", "1", "--rounds", "1", *tiny))


def _ended(demo: Demo) -> Iterator[Demo]:
    try:
        yield demo
    finally:
        demo.process.kill()
        demo.process.communicate()


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("tmp/hfmds-demo-*", signal.SIGINT),
        ("tmp/*/data/held-out.npz", signal.SIGTERM),
        ("tmp/*/logs/device-01.log", signal.SIGINT),
    ],
)
def test_an_interrupt_leaves_nothing(demo: Demo, moment: str, number: signal.Signals) -> None:
    demo.wait_for(moment)
    demo.process.send_signal(number)
    assert_nothing_is_left(demo)
    assert not list(demo.report.iterdir())


def test_an_interrupt_during_the_report_leaves_nothing(short_demo: Demo) -> None:
    short_demo.wait_for("report/.draft-*")
    short_demo.process.send_signal(signal.SIGINT)
    assert_nothing_is_left(short_demo)
    assert not list(short_demo.report.glob(".draft-*"))


def assert_nothing_is_left(demo: Demo) -> None:
    output, _ = demo.process.communicate(timeout=60)
    assert demo.process.returncode == 130, output
    assert "Traceback" not in output
    assert not demo.children()
    assert not list(demo.temporary.iterdir())


def test_a_dying_service_ends_the_demo_with_its_last_output(demo: Demo) -> None:
    addresses = demo.wait_for("tmp/*/coordinator.json")
    os.kill(json.loads(addresses.read_text())["pid"], signal.SIGKILL)
    output, _ = demo.process.communicate(timeout=60)
    assert demo.process.returncode == 1, output
    assert "hfmds: coordinator ended by itself (killed by SIGKILL); the end of its log:" in output
    assert not demo.children()
    assert not list(demo.temporary.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has PR_SET_PDEATHSIG")
def test_a_killed_demo_leaves_no_process(demo: Demo) -> None:
    demo.wait_for("tmp/*/logs/device-01.log")
    demo.process.kill()
    demo.process.communicate(timeout=60)
    wait_until(lambda: not demo.children())
