import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hfmds.processes import ChildDied, Supervisor

REPOSITORY = Path(__file__).parents[1]


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


SLEEP = python("import time; print('asleep', flush=True); time.sleep(600)")
STUBBORN = python("""
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
""")
WITH_GRANDCHILD = python("""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
""")

PARENT = """
import asyncio, json, os, sys
from pathlib import Path
from hfmds.cli.interrupts import run_interruptible
from hfmds.processes import Supervisor

async def main():
    with Supervisor(Path(sys.argv[1])) as supervisor:
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        children = [supervisor.start(f"child-{n}", sleep, os.environ) for n in range(3)]
        print(json.dumps([child.process.pid for child in children]), flush=True)
        await asyncio.sleep(600)

try:
    run_interruptible(main())
except KeyboardInterrupt:
    sys.exit(130)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition: Callable[[], bool], within_seconds: float = 60) -> bool:
    deadline = time.monotonic() + within_seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def log_of(folder: Path, name: str) -> str:
    assert eventually(lambda: (folder / f"{name}.log").read_text().endswith("\n"))
    return (folder / f"{name}.log").read_text()


def test_children_are_gone_after_the_block(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        child = supervisor.start("sleeper", SLEEP, os.environ)
        assert log_of(tmp_path, "sleeper") == "asleep\n"
        supervisor.check()
        assert child.exit_code() is None
    assert not is_alive(child.process.pid)


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    with Supervisor(tmp_path, grace_seconds=0.2) as supervisor:
        child = supervisor.start("stubborn", STUBBORN, os.environ)
        log_of(tmp_path, "stubborn")
    assert child.process.returncode == -signal.SIGKILL


def test_grandchildren_are_stopped_with_their_parent(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.start("parent", WITH_GRANDCHILD, os.environ)
        grandchild = int(log_of(tmp_path, "parent"))
        assert is_alive(grandchild)
    assert eventually(lambda: not is_alive(grandchild))


def test_grandchildren_of_a_dead_child_are_stopped(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        child = supervisor.start("parent", WITH_GRANDCHILD, os.environ)
        grandchild = int(log_of(tmp_path, "parent"))
        os.kill(child.process.pid, signal.SIGKILL)
        assert eventually(lambda: child.exit_code() is not None)
        assert is_alive(grandchild)
    assert eventually(lambda: not is_alive(grandchild))


def test_the_error_of_a_dead_child_names_it_its_exit_code_and_last_output(tmp_path: Path) -> None:
    dying = python("print('line\\n' * 50 + 'my last words'); raise SystemExit(3)")
    with Supervisor(tmp_path) as supervisor:
        child = supervisor.start("weakling", dying, os.environ)
        assert eventually(lambda: child.exit_code() is not None)
        with pytest.raises(ChildDied, match=r"weakling .*exit code 3") as caught:
            supervisor.check()
    assert str(caught.value).endswith("my last words")
    assert len(str(caught.value).splitlines()) < 20


def test_a_signal_is_named(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        child = supervisor.start("victim", SLEEP, os.environ)
        os.kill(child.process.pid, signal.SIGKILL)
        assert eventually(lambda: child.exit_code() is not None)
        with pytest.raises(ChildDied, match="killed by SIGKILL"):
            supervisor.check()


async def test_guarded_work_is_cancelled_when_a_child_dies(tmp_path: Path) -> None:
    cancelled = False

    async def work() -> None:
        nonlocal cancelled
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled = True
            raise

    dying = python("import time; time.sleep(0.2)")
    with Supervisor(tmp_path) as supervisor:
        supervisor.start("weakling", dying, os.environ)
        with pytest.raises(ChildDied, match="exit code 0"):
            await supervisor.guard(work())
    assert cancelled


async def test_guarded_work_returns_its_result_and_raises_its_error(tmp_path: Path) -> None:
    async def well() -> int:
        return 7

    async def badly() -> int:
        raise ValueError("no")

    with Supervisor(tmp_path) as supervisor:
        supervisor.start("sleeper", SLEEP, os.environ)
        assert await supervisor.guard(well()) == 7
        with pytest.raises(ValueError, match="no"):
            await supervisor.guard(badly())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_parent_leaves_no_child(tmp_path: Path, number: signal.Signals) -> None:
    parent, children = start_parent(tmp_path)
    parent.send_signal(number)
    assert parent.wait(timeout=60) == 130
    assert not any(is_alive(pid) for pid in children)


def test_impatient_ctrl_c_does_not_disturb_the_clean_up(tmp_path: Path) -> None:
    parent, children = start_parent(tmp_path)
    for _ in range(50):
        parent.send_signal(signal.SIGINT)
        time.sleep(0.002)
    # A signal after the clean-up ends the interpreter. A shell shows 130 in both cases.
    assert parent.wait(timeout=60) in (130, -signal.SIGINT)
    assert not any(is_alive(pid) for pid in children)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has PR_SET_PDEATHSIG")
def test_a_killed_parent_leaves_no_child(tmp_path: Path) -> None:
    parent, children = start_parent(tmp_path)
    parent.kill()
    parent.wait(timeout=60)
    assert eventually(lambda: not any(is_alive(pid) for pid in children))


def start_parent(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout
    with parent.stdout:
        children = json.loads(parent.stdout.readline())
    assert all(is_alive(pid) for pid in children)
    return parent, children
