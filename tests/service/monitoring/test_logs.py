import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from hfmds.service.monitoring.logs import configure_logging, log_context

log = logging.getLogger("tests.telemetry")


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    logging.captureWarnings(False)


def test_a_json_record_carries_context_and_extra(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json", "coordinator")
    with log_context(run="r1", round=3), log_context(device="d7", round=4):
        log.info("update %s", "accepted", extra={"samples": 60})
    log.debug("not shown")
    entry = json.loads(capsys.readouterr().err)
    assert entry.pop("ts").endswith("Z")
    assert entry == {
        "level": "info",
        "service": "coordinator",
        "logger": "tests.telemetry",
        "message": "update accepted",
        "run": "r1",
        "round": 4,
        "device": "d7",
        "samples": 60,
    }


def test_the_context_ends_with_its_block(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json", "coordinator")
    with log_context(run="r1"):
        pass
    log.info("after")
    assert "run" not in json.loads(capsys.readouterr().err)


async def test_the_context_follows_tasks_and_threads_and_does_not_mix(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("info", "json", "edge_client")

    async def work(device: str) -> None:
        with log_context(device=device):
            await asyncio.sleep(0)
            await asyncio.to_thread(log.info, device)

    await asyncio.gather(work("a"), work("b"))
    entries = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {(e["message"], e["device"]) for e in entries} == {("a", "a"), ("b", "b")}


def test_a_field_cannot_pass_for_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json", "coordinator")
    log.info("x", extra={"level": "critical", "ts": "never"})
    entry = json.loads(capsys.readouterr().err)
    assert entry["level"] == "info"
    assert entry["ts"] != "never"


def test_a_traceback_stays_inside_its_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json", "coordinator")
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        log.exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "RuntimeError: boom" in json.loads(line)["exception"]


def test_the_console_format_is_one_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("warning", "console", "coordinator")
    with log_context(round=3):
        log.warning("late update", extra={"reason": "round 2 is over"})
    line = capsys.readouterr().err
    assert line.endswith(' WARNING tests.telemetry: late update round=3 reason="round 2 is over"\n')


def test_text_from_a_peer_cannot_forge_a_console_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "console", "coordinator")
    log.info("name is %s", "x\n12:00:00 ERROR \x1b[31m", extra={"device": "y\nz"})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith('name is x\\n12:00:00 ERROR \\x1b[31m device="y\\nz"')
