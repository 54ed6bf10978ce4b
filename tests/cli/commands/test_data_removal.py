"""Commands that delete content of the store, and commands that read its log."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hfmds.cli.main import main
from hfmds.event_chain import Event, canonical, make_event, origin
from hfmds.v1 import synthesis_store_pb2 as pb
from hfmds.wire.conversions.events import event_message
from hfmds.wire.pages import first_page
from tests.cli.fake_services import FakeStore, serving

Output = pytest.CaptureFixture[str]

LOG_ID = "store.abcd"


def a_log() -> list[Event]:
    log: list[Event] = []
    for number, kind in enumerate(("pool-opened", "pool-sealed", "device-withdrawn"), start=1):
        before = log[-1].hash if log else origin(LOG_ID)
        log.append(make_event(LOG_ID, number, number, kind, canonical({"pool": "p"}), before))
    return log


class FakeKeeper(FakeStore):
    """A store with unneeded snapshots, and a log in pages of two."""

    def __init__(self) -> None:
        super().__init__()
        self.unneeded = ["one", "two", "three"]
        self.withdrawn: list[tuple[str, str]] = []
        self.released: list[str] = []
        self.log = a_log()

    def CollectSnapshots(self, request: Any, context: Any) -> Any:
        released = self.unneeded[:2]
        if not request.dry_run:
            del self.unneeded[:2]
        return pb.CollectSnapshotsResponse(
            snapshot_ids=released, erased_blobs=len(released), erased_bytes=1000 * len(released)
        )

    def ReleaseRun(self, request: Any, context: Any) -> Any:
        self.released.append(request.run_id)
        return pb.ReleaseRunResponse(snapshots=3)

    def WithdrawDevice(self, request: Any, context: Any) -> Any:
        self.withdrawn.append((request.device_id, request.run_id))
        return pb.WithdrawDeviceResponse(removed_batches=2, remaining_snapshots=1)

    def ListStoreEvents(self, request: Any, context: Any) -> Any:
        later = [event_message(event) for event in self.log[request.after_sequence :]]
        return pb.ListStoreEventsResponse(log_id=LOG_ID, events=first_page(later, 2))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKeeper]:
    keeper = FakeKeeper()
    with serving(keeper) as address:
        monkeypatch.setenv("HFMDS_STORE", address)
        yield keeper


def test_collect_continues_until_nothing_remains(store: FakeKeeper, capsys: Output) -> None:
    assert main(["snapshots", "collect", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "one",
        "two",
        "would remove 2 snapshots, and erase 2 files of 2.0 kB",
    ]
    assert store.unneeded == ["one", "two", "three"]
    assert main(["snapshots", "collect"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "one",
        "two",
        "three",
        "removed 3 snapshots, and erased 3 files of 3.0 kB",
    ]
    assert store.unneeded == []


def test_release_asks_first(
    store: FakeKeeper, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert main(["snapshots", "release", "run-1"]) != 0
    assert store.released == []
    assert main(["snapshots", "release", "run-1", "--yes"]) == 0
    assert store.released == ["run-1"]
    assert "run run-1 has released 3 snapshots" in capsys.readouterr().out


def test_withdraw_asks_first(
    store: FakeKeeper, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert main(["snapshots", "withdraw", "phone-3"]) != 0
    assert store.withdrawn == []
    assert main(["snapshots", "withdraw", "phone-3", "--run", "run-1", "--yes"]) == 0
    assert store.withdrawn == [("phone-3", "run-1")]
    output = capsys.readouterr().out
    assert "2 batches left open pools, and its images are still in 1 snapshot\n" in output


def test_the_stores_log_is_shown_and_checked(store: FakeKeeper, capsys: Output) -> None:
    assert main(["audit", "show-store"]) == 0
    assert "device-withdrawn" in capsys.readouterr().out
    assert main(["audit", "show-store", "--kind", "pool", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [event["kind"] for event in shown] == ["pool-opened", "pool-sealed"]
    head = store.log[-1].hash
    assert main(["audit", "verify-store", "--head", store.log[0].hash]) == 0
    assert f"{LOG_ID} is sound: 3 events, and has the noted head" in capsys.readouterr().out
    store.log[1] = replace(store.log[1], details=canonical({"pool": "q"}))
    assert main(["audit", "verify-store"]) == 1
    assert "event 2 (pool-sealed" in capsys.readouterr().err
    store.log = a_log()[:2]
    assert main(["audit", "verify-store", "--head", head]) == 1
    assert "cut off" in capsys.readouterr().err
    store.log = []
    assert main(["audit", "verify-store"]) == 0
    assert "is sound: 0 events" in capsys.readouterr().out
