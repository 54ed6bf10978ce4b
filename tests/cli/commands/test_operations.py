"""Commands for operators: audit, status, drain, and details of runs and devices."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from hfmds.cli.main import main
from hfmds.domain.administration.operations import Drain, Funnel, Status
from hfmds.domain.tasks import TaskStage
from hfmds.event_chain import Event, canonical, make_event, origin
from hfmds.v1 import admin_pb2
from hfmds.wire.conversions.events import event_message
from hfmds.wire.conversions.operations import drain_message, funnel_message, status_message
from hfmds.wire.pages import first_page
from tests.cli.fake_services import FakeCoordinator, serving
from tests.cli.values import MOMENT, a_device, a_run

Output = pytest.CaptureFixture[str]

RUN_UID = "run-1.abcd"
LOGGED: tuple[tuple[str, dict[str, object]], ...] = (
    ("run-created", {"by": "olga"}),
    ("task-accepted", {"device": "a", "result": "12" * 32}),
    ("task-late", {"device": "b", "reason": "deadline"}),
    ("run-completed", {}),
)


def a_log() -> list[Event]:
    log: list[Event] = []
    for number, (kind, details) in enumerate(LOGGED, start=1):
        before = log[-1].hash if log else origin(RUN_UID)
        log.append(make_event(RUN_UID, number, number * 10**6, kind, canonical(details), before))
    return log


class FakeOversight(FakeCoordinator):
    """A coordinator with a log in pages of two entries, a funnel and a drain."""

    def __init__(self) -> None:
        super().__init__()
        self.log = a_log()
        self.drain = Drain(on=False)
        self.funnels: dict[tuple[str, int], list[Funnel]] = {}
        self.deleted: list[str] = []

    def ListEvents(self, request: Any, context: Any) -> Any:
        if request.run_id not in ("run-1", RUN_UID):
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no log of {request.run_id}")
        later = [event_message(e) for e in self.log if e.sequence > request.after_sequence]
        return admin_pb2.ListEventsResponse(run_uid=RUN_UID, events=first_page(later, 2))

    def GetFunnel(self, request: Any, context: Any) -> Any:
        funnels = self.funnels.get((request.run_id, request.round), [])
        return admin_pb2.GetFunnelResponse(funnels=map(funnel_message, funnels))

    def SetDrain(self, request: Any, context: Any) -> Any:
        self.drain = Drain(request.on, MOMENT, "olga")
        return admin_pb2.SetDrainResponse(drain=drain_message(self.drain))

    def GetStatus(self, request: Any, context: Any) -> Any:
        tasks = {"downloaded": 2, "taken": 1}
        return status_message(Status(self.drain, {"running": 1}, {"working": 3}, tasks))

    def DeleteRun(self, request: Any, context: Any) -> Any:
        self._find(request.run_id, context)
        self.deleted.append(request.run_id)
        return admin_pb2.DeleteRunResponse()


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOversight]:
    fake = FakeOversight()
    with serving(fake) as address:
        monkeypatch.setenv("HFMDS_COORDINATOR", address)
        yield fake


# --- audit ----------------------------------------------------------------------------------------


def test_audit_show(coordinator: FakeOversight, capsys: Output) -> None:
    assert main(["audit", "show", "run-1"]) == 0
    output = capsys.readouterr().out
    assert "events of run-1.abcd" in output
    assert [line.split()[3] for line in output.splitlines() if line.strip()[:1].isdigit()] == [
        kind for kind, _ in LOGGED
    ]
    assert "device a, result 121212121212\n" in output.replace(" \n", "\n").replace("  ", "")
    assert main(["audit", "show", "run-1", "--kind", "task", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [event["kind"] for event in shown] == ["task-accepted", "task-late"]
    assert shown[0]["hash"] == coordinator.log[1].hash
    assert main(["audit", "show", "run-1", "--kind", "drain-on"]) == 0
    assert "no such events; the log of run-1.abcd has 4 others" in capsys.readouterr().out
    coordinator.log = []
    assert main(["audit", "show", "run-1"]) == 0
    assert "no events yet in the log of run-1.abcd" in capsys.readouterr().out
    assert main(["audit", "show", "other"]) == 1
    assert "there is no log of other" in capsys.readouterr().err


def test_audit_verify(coordinator: FakeOversight, capsys: Output) -> None:
    head = coordinator.log[-1].hash
    assert main(["audit", "verify", "run-1"]) == 0
    output = capsys.readouterr().out
    assert output == f"the log of run-1.abcd is sound: 4 events\nhead {head}\n"
    assert main(["audit", "verify", "run-1", "--head", coordinator.log[1].hash]) == 0
    assert "4 events, and has the noted head" in capsys.readouterr().out
    coordinator.log[2] = replace(coordinator.log[2], details="{}")
    assert main(["audit", "verify", "run-1"]) == 1
    output = capsys.readouterr().err
    assert "the log of run-1.abcd is broken: event 3 (task-late, 1970-01-01 00:00:03)" in output
    coordinator.log = coordinator.log[:2]
    assert main(["audit", "verify", "run-1"]) == 0
    capsys.readouterr()
    assert main(["audit", "verify", "run-1", "--head", head]) == 1
    assert f"the noted head {head} is not in the log" in capsys.readouterr().err
    assert main(["audit", "verify", "run-1", "--head", head[:12]]) == 2
    output = capsys.readouterr().err
    assert "64 hexadecimal digits" in output
    assert "cut off" not in output


# --- drain and status -----------------------------------------------------------------------------


def test_drain_and_status(coordinator: FakeOversight, capsys: Output) -> None:
    assert main(["status"]) == 0
    output = capsys.readouterr().out
    assert "drained       no" in output
    assert "tasks out     2 downloaded, 1 taken" in output
    assert main(["drain"]) == 0
    assert "end it with: hfmds drain --off" in capsys.readouterr().out
    assert main(["status"]) == 0
    assert "by olga" in capsys.readouterr().out
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drain"]["on"] is True
    assert main(["drain", "--off"]) == 0
    assert "the coordinator is not drained" in capsys.readouterr().out
    assert not coordinator.drain.on


def test_funnel(coordinator: FakeOversight, capsys: Output) -> None:
    coordinator.funnels["run-1", 2] = [
        Funnel("synthesise", 4, 4, 4, 4, 4, 4, 4, 4),
        Funnel("train", 10, 8, 6, 6, 5, 5, 5, 3, unneeded=1, late={"gone": 2}, failed={"x": 1}),
    ]
    assert main(["run", "funnel", "run-1", "--round", "2"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert ["here", "10", "█" * 30] in lines
    assert ["accepted", "3", "█" * 9] in lines
    assert ["late", "2", "2", "gone"] in lines
    assert ["failed", "1", "1", "x"] in lines
    assert ["not", "needed", "1"] in lines
    assert [line for line in lines if line[0] == "pending"] == []
    assert main(["run", "funnel", "run-1", "--round", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1]["late"] == {"gone": 2}
    assert main(["run", "funnel"]) == 0
    assert "no device has received a task yet" in capsys.readouterr().out


def test_a_terminal_that_cannot_write_bars_gets_the_numbers(
    coordinator: FakeOversight, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.funnels["run-1", 0] = [Funnel("train", 10, 8, 6, 6, 5, 5, 5, 3)]
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert main(["run", "funnel", "run-1"]) == 0
    sys.stdout.flush()
    [here] = [line for line in written.getvalue().decode().splitlines() if "here" in line]
    assert [part.strip() for part in here.strip("|").split("|")] == ["here", "10", "?" * 30]


def test_delete_asks_first(
    coordinator: FakeOversight, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.runs["run-1"] = a_run()
    for answer in ("n\n", ""):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert main(["run", "delete", "run-1"]) == 1
    assert coordinator.deleted == []
    assert main(["run", "delete", "run-1", "--yes"]) == 0
    assert coordinator.deleted == ["run-1"]
    assert "its log stays: hfmds audit show run-1" in capsys.readouterr().out
    assert main(["run", "delete", "other", "--yes"]) == 1
    assert "there is no run other" in capsys.readouterr().err


def test_devices_show_their_progress(coordinator: FakeOversight, capsys: Output) -> None:
    coordinator.devices = [replace(a_device(), stage=TaskStage.DOWNLOADED)]
    assert main(["devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["stage"] == "downloaded"
