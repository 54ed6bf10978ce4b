"""The event log records every step in the transaction of the step, and reveals tampering."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from coordinator.records.events import EventRecords
from coordinator.records.phases import PhaseSpec
from coordinator.records.states import RoundState
from coordinator.records.tables import Base
from coordinator.records.tasks import PhaseKey
from hfmds.domain.digest import digest_of
from hfmds.domain.runs import RunState
from hfmds.domain.tasks import FailureCause, LateReason
from hfmds.errors import InvalidInput, NotFound, TooLate, WrongState
from hfmds.event_chain import Event, canonical, flaw, make_event, origin
from hfmds.storage.database import opened_database, write_session
from tests.coordinator.records.test_states import Records, completed
from tests.coordinator.workbench import Workbench, echo, make_spec, workbench
from tests.support.databases import database_of

REPOSITORY = Path(__file__).resolve().parents[3]


def log_in(folder: Path, run: str = "run") -> tuple[str, list[Event]]:
    with opened_database(database_of(folder)) as engine:
        Base.metadata.create_all(engine)
        records = EventRecords(engine)
        run_uid = records.log_of(run)
        return run_uid, records.events(run_uid, 0, 1000)


def logged(folder: Path) -> list[tuple[str, dict[str, object]]]:
    return [(event.kind, json.loads(event.details)) for event in log_in(folder)[1]]


def kinds(folder: Path) -> list[str]:
    return [kind for kind, _ in logged(folder)]


# --- contents -------------------------------------------------------------------------------------


async def test_the_log_records_a_run_from_beginning_to_end(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(refresh_every=1))
        await bench.play("a", 2, echo)
        await bench.until(lambda run: run.state is RunState.COMPLETED)
    events = logged(tmp_path)
    states = [details["state"] for kind, details in events if kind == "round-entered"]
    assert states == [state.name.lower() for state in RoundState]
    assert [kind for kind, _ in events if kind != "round-entered"] == [
        "run-created",
        "phase-opened",
        "task-accepted",
        "phase-closed",
        "pool-sealed",
        "phase-opened",
        "task-accepted",
        "phase-closed",
        "model-kept",
        "run-completed",
    ]
    by_kind = dict(events)  # the last event of each kind
    assert by_kind["task-accepted"].items() >= {
        ("round", 1),
        ("phase", "train"),
        ("device", "a"),
    }
    assert by_kind["pool-sealed"]["snapshot"].startswith("snapshot-of-run.")  # type: ignore[attr-defined]
    assert by_kind["phase-closed"] == {
        "round": 1,
        "phase": "train",
        "reason": "goal-reached",
        "results": 1,
    }
    run_uid, log = log_in(tmp_path)
    assert flaw(log, run_uid) == ""


@pytest.mark.usefixtures("both_databases")
def test_repeated_and_refused_steps_are_not_logged(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.phases.open(records.phase_spec(), ["a"], 2.0)
    task = records.tasks.lease("a", "", 3.0)
    assert task is not None
    for now in (4.0, 5.0):
        records.tasks.accept("a", task.task_id, digest_of(b"u"), b"", now)
        records.runs.pause("run", now, by="olga")
    before = logged(tmp_path)
    assert before[-2][0] == "task-accepted"
    assert before[-1] == ("run-paused", {"by": "olga", "reason": ""})
    with pytest.raises(WrongState):
        records.runs.complete_round("run", completed(), 6.0)
    with pytest.raises(WrongState):
        records.phases.open(
            PhaseSpec(PhaseKey("run", 1, "synthesise"), digest_of(b"w"), "", records.spec.policy),
            ["a"],
            6.0,
        )
    records.runs.resume("run", 7.0)
    assert logged(tmp_path) == [*before, ("run-resumed", {"by": "coordinator"})]
    run_uid, log = log_in(tmp_path)
    assert flaw(log, run_uid) == ""


def test_a_lost_device_is_logged_with_the_cause(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.phases.open(records.phase_spec(), ["a", "b", "c"], 2.0)
    tasks = {device: records.tasks.lease(device, "", 3.0) for device in "ab"}
    failing, slow = tasks["a"], tasks["b"]
    assert failing is not None
    assert slow is not None
    for now in (4.0, 5.0):
        records.tasks.refuse("a", failing.task_id, "not finite", now)
    records.tasks.fail("a", failing.task_id, "told so", FailureCause.UNSUITABLE, 6.0)
    records.phases.close(slow.key, LateReason.DEADLINE, 7.0)
    of_task = {"round": 1, "phase": "train"}
    assert logged(tmp_path)[-5:-1] == [
        ("task-refused", {**of_task, "device": "a", "reason": "not finite"}),
        (
            "task-failed",
            {**of_task, "device": "a", "cause": "refused", "reason": "told so"},
        ),
        (
            "task-late",
            {**of_task, "device": "b", "reason": "deadline"},
        ),  # c never received its task
        ("phase-closed", {**of_task, "reason": "deadline", "results": 0}),
    ]


async def test_a_refused_update_is_logged(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec())
        assignment = await bench.check_in("a")
        for _ in range(2):
            with pytest.raises(InvalidInput):
                await bench.submit("a", assignment, b"no tensors")
        bench.runs.cancel("run", "olga")
        with pytest.raises(TooLate):
            await bench.submit("a", assignment, b"no tensors")
    assert kinds(tmp_path)[-3:] == ["task-refused", "run-cancelled", "task-late"]


async def test_a_restart_continues_the_chain(tmp_path: Path) -> None:
    async def scenario(act: Callable[[Workbench], object]) -> None:
        async with workbench(tmp_path) as bench:
            await bench.create(make_spec(devices=5))
            act(bench)

    await scenario(lambda bench: bench.runs.pause("run"))
    await scenario(lambda bench: bench.runs.cancel("run"))
    run_uid, log = log_in(tmp_path)
    assert [event.sequence for event in log] == list(range(1, len(log) + 1))
    assert flaw(log, run_uid) == ""
    assert [event.kind for event in log if event.kind.startswith("run-")] == [
        "run-created",
        "run-paused",
        "run-cancelled",
    ]


def test_an_unknown_log_is_not_found(tmp_path: Path) -> None:
    with opened_database(database_of(tmp_path)) as engine:
        Base.metadata.create_all(engine)
        with pytest.raises(NotFound, match="no log of a run 'none'"):
            EventRecords(engine).log_of("none")


# --- append only ----------------------------------------------------------------------------------

PACKAGES = ("coordinator", "edge_client", "hfmds", "synthesis_store")
KNOWS_EVENTS = re.compile("EventRow|EventColumns")  # this also matches the store's class
CHANGES_ROWS = re.compile(r"(update|delete|merge)\(")
CHANGES_EVENTS = re.compile(
    r"(update|delete\s+from|replace\s+into|truncate(\s+table)?)\s+(store_)?events\b", re.IGNORECASE
)


def sources(repository: Path) -> Iterator[tuple[str, str]]:
    """Return the code of all programs, by path."""
    for package in PACKAGES:
        for path in (repository / package).rglob("*.py"):
            yield path.relative_to(repository).as_posix(), path.read_text()


def changing(repository: Path) -> set[str]:
    """Return the code that may change or delete an event."""
    return {
        path
        for path, code in sources(repository)
        if CHANGES_EVENTS.search(code) or (KNOWS_EVENTS.search(code) and CHANGES_ROWS.search(code))
    }


def test_no_code_changes_or_removes_an_event() -> None:
    assert {path for path, code in sources(REPOSITORY) if KNOWS_EVENTS.search(code)} == {
        "coordinator/records/events.py",
        "coordinator/records/tables.py",
        "hfmds/storage/event_log.py",
        "synthesis_store/events.py",
        "synthesis_store/monitoring/inventory.py",  # only counts events
        "synthesis_store/tables.py",
    }
    assert changing(REPOSITORY) == set()


@pytest.mark.parametrize(
    "path",
    [
        "coordinator/records/events.py",
        "coordinator/web/html_pages.py",
        "hfmds/storage/event_log.py",
    ],
)
@pytest.mark.parametrize(
    "code",
    [
        "session.execute(delete(EventRow))",
        "Prepared(update(StoreEventRow).where(of_log))",
        "fresh.on_conflict_do_update(index_elements=[EventColumns.log_id])",
        "session.merge(EventRow(log_id=log_id))",
        'text("DELETE FROM events")',
        'text("update store_events set details = 1")',
    ],
)
def test_code_that_would_change_an_event_is_found(tmp_path: Path, path: str, code: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(code)
    assert changing(tmp_path) == {path}


# --- tampering ------------------------------------------------------------------------------------


def broken(folder: Path, *statements: str, head: str = "") -> str:
    """Return the result of checking the log after a statement changed the database."""
    with opened_database(database_of(folder)) as engine, write_session(engine) as session:
        for statement in statements:
            _execute(session, statement)
    run_uid, log = log_in(folder)
    return flaw(log, run_uid, head)


def _execute(session: Session, statement: str) -> None:
    session.execute(text(statement))


@pytest.fixture
def log_of_six(tmp_path: Path) -> Path:
    records = Records(tmp_path)
    records.phases.open(records.phase_spec(), ["a"], 2.0)
    records.runs.pause("run", 3.0)
    records.runs.resume("run", 4.0)
    assert len(log_in(tmp_path)[1]) == 6
    return tmp_path


def test_a_changed_entry_shows(log_of_six: Path) -> None:
    for column, value in (
        ("details", "'{}'"),
        ("at_microseconds", "at_microseconds + 1"),
        ("kind", "'run-resumed'"),
    ):
        before = broken(log_of_six)
        assert before == "" or "event 5" in before
        problem = broken(log_of_six, f"UPDATE events SET {column} = {value} WHERE sequence = 5")
        assert problem.startswith("event 5 (")
        assert problem.endswith("is not what was written: its hash does not fit")


def test_a_removed_entry_shows(log_of_six: Path) -> None:
    assert broken(log_of_six, "DELETE FROM events WHERE sequence = 3") == (
        "event 3 is missing: event 4 is in its place"
    )
    assert broken(log_of_six, "DELETE FROM events WHERE sequence = 1") == (
        "event 1 is missing: event 2 is in its place"
    )


def test_entries_moved_up_to_hide_a_removed_one_show(log_of_six: Path) -> None:
    problem = broken(
        log_of_six,
        "DELETE FROM events WHERE sequence = 3",
        "UPDATE events SET sequence = 3 WHERE sequence = 4",
        "UPDATE events SET sequence = 4 WHERE sequence = 5",
        "UPDATE events SET sequence = 5 WHERE sequence = 6",
    )
    assert problem.startswith("event 3 (")
    assert problem.endswith("does not continue what is before it")


def test_swapped_entries_show(log_of_six: Path) -> None:
    problem = broken(
        log_of_six,
        "UPDATE events SET sequence = 99 WHERE sequence = 4",
        "UPDATE events SET sequence = 4 WHERE sequence = 5",
        "UPDATE events SET sequence = 5 WHERE sequence = 99",
    )
    assert problem.startswith("event 4 (")


def test_an_entry_with_a_recomputed_hash_shows_at_the_next_entry(log_of_six: Path) -> None:
    run_uid, log = log_in(log_of_six)
    old = log[3]
    forged = make_event(
        run_uid, 4, old.at_microseconds, old.kind, canonical({"forged": 1}), old.previous_hash
    )
    problem = broken(
        log_of_six,
        f"UPDATE events SET hash = '{forged.hash}', details = '{forged.details}' "
        "WHERE sequence = 4".replace(":", "\\:"),
    )
    assert problem.startswith("event 5 (")
    assert problem.endswith("does not continue what is before it")


def test_a_truncated_log_does_not_match_a_noted_head(log_of_six: Path) -> None:
    head = log_in(log_of_six)[1][-1].hash
    assert broken(log_of_six, head=head) == ""
    cut = "DELETE FROM events WHERE sequence > 4"
    assert broken(log_of_six, cut) == ""
    assert broken(log_of_six, head=head) == (
        f"after event 4: the noted head {head} is not in the log, which was cut off"
    )


def test_the_log_of_one_run_does_not_pass_for_another(log_of_six: Path) -> None:
    _, log = log_in(log_of_six)
    assert flaw(log, "other.12345678").startswith("event 1 (")
    assert origin("a.1") != origin("a.2")
