"""The progress line on a device's console."""

from __future__ import annotations

import io
import logging

import pytest

from edge_client.console import StatusLine, describe_step


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_new_text_overwrites_the_line() -> None:
    terminal = Terminal()
    line = StatusLine(terminal)
    line.show("one")
    line.show("one")
    line.show("two")
    line.close()
    line.close()
    assert terminal.getvalue() == "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[K"


def test_logs_begin_on_an_empty_line() -> None:
    terminal = Terminal()
    line = StatusLine(terminal)
    handler = logging.StreamHandler(terminal)
    line.make_way_for(handler)
    line.show("training")
    handler.handle(logging.makeLogRecord({"msg": "update accepted"}))
    assert terminal.getvalue() == "\r\x1b[Ktraining\r\x1b[Kupdate accepted\n"


@pytest.mark.parametrize(("stream", "wanted"), [(io.StringIO(), True), (Terminal(), False)])
def test_files_and_pipes_get_no_progress_line(stream: io.StringIO, wanted: bool) -> None:
    line = StatusLine(stream, wanted=wanted)
    line.show("one")
    line.close()
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("done", "seconds", "text"),
    [
        (1, 2.0, "training: step 1 of 4 (25 %), about 6 s left"),
        (2, 200.0, "training: step 2 of 4 (50 %), about 3 min 20 s left"),
        (4, 9.0, "training: step 4 of 4 (100 %)"),
    ],
)
def test_a_step_is_described_with_the_time_left(done: int, seconds: float, text: str) -> None:
    assert describe_step("training", done, 4, seconds) == text
