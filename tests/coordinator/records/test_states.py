"""State machines: docs/ shows the transitions of the code, and the records refuse all others."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.records.acceptance import Acceptance, HandedIn
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.phases import PhaseRecord, PhaseRecords, PhaseSpec
from coordinator.records.retention import RetentionRecords
from coordinator.records.rounds import RoundRecords
from coordinator.records.runs import RunPosition, RunRecords
from coordinator.records.states import (
    ROUND_TRANSITIONS,
    RUN_TRANSITIONS,
    TASK_TRANSITIONS,
    RoundState,
    TaskState,
)
from coordinator.records.tables import Base
from coordinator.records.tasks import PhaseKey, Task
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.learning import Traffic
from hfmds.domain.runs import Round, RunState
from hfmds.domain.tasks import FailureCause, LateReason, TaskStage
from hfmds.errors import Conflict, HfmdsError, NotAllowed, NotFound, TooLate, WrongState
from hfmds.state_machine import require_transition
from hfmds.storage.database import open_database
from tests.coordinator.workbench import make_spec
from tests.support.databases import database_of

PICTURES = Path(__file__).resolve().parents[3] / "docs" / "rounds.md"
MACHINES: list[Mapping[enum.Enum, frozenset[enum.Enum]]] = [
    RUN_TRANSITIONS,
    ROUND_TRANSITIONS,
    TASK_TRANSITIONS,
]


def test_the_state_diagrams_show_exactly_the_transitions_of_the_code() -> None:
    blocks = re.findall(r"```mermaid\n(.*?)```", PICTURES.read_text(), re.DOTALL)
    drawn = [set(re.findall(r"^ *([A-Z]+) --> ([A-Z]+)", block, re.MULTILINE)) for block in blocks]
    assert drawn == [
        {(before.name, after.name) for before, steps in machine.items() for after in steps}
        for machine in MACHINES
    ]


@pytest.mark.parametrize("machine", MACHINES, ids=["run", "round", "task"])
def test_every_state_is_in_its_table_and_can_be_reached(
    machine: Mapping[enum.Enum, frozenset[enum.Enum]],
) -> None:
    states = list(type(next(iter(machine))))
    assert list(machine) == states
    reached = {states[0]}  # the initial state
    while more := {after for state in reached for after in machine[state]} - reached:
        reached |= more
    assert reached == set(states)


def test_a_step_that_is_not_in_the_table_is_refused_by_name() -> None:
    with pytest.raises(WrongState, match="round 3 is training"):
        require_transition(ROUND_TRANSITIONS, RoundState.TRAINING, RoundState.COMPLETED, "round 3")


class SingleTasks(TaskRecords):
    """Task records that take one device or one result at a time."""

    def lease(self, device_id: str, run_id: str, now: float) -> Task | None:
        return self.lease_each([(device_id, run_id)], now)[0]

    def accept(
        self,
        device_id: str,
        task_id: str,
        result: Digest,
        report: bytes,
        now: float,
    ) -> bool:
        """Count one result; return whether it was accepted before."""
        (outcome,) = self.accept_each([HandedIn(device_id, task_id, result, report)], now)
        if isinstance(outcome, HfmdsError):
            raise outcome
        return outcome.already


class Records:
    """Records of a run "run" in its first round, on a fresh database."""

    def __init__(self, folder: Path) -> None:
        self._engine = open_database(database_of(folder))
        Base.metadata.create_all(self._engine)
        self.runs = RunRecords(self._engine)
        self.rounds = RoundRecords(self._engine)
        self.phases = PhaseRecords(self._engine)
        self.retention = RetentionRecords(self._engine)
        self.tasks = SingleTasks(self._engine)
        self.spec = make_spec(rounds=2)
        self.runs.create("run", self.spec, 0.0)
        self.rounds.begin("run", 1, 1.0)

    def phase_spec(self, kind: str = "train", goal: int = 0) -> PhaseSpec:
        key = PhaseKey("run", 1, "train" if kind == "train" else "synthesise")
        return PhaseSpec(key, digest_of(b"w"), "", self.spec.policy, goal)

    def phase(self) -> PhaseRecord:
        return self.phases.get(self.phase_spec().key)

    def state(self) -> RoundState | None:
        current_round = self.rounds.in_progress("run")
        return current_round and current_round.state


def completed(number: int = 1) -> Round:
    return Round(number, ("a",), digest_of(b"w"), 0.5, None, False, None, Traffic(), 1.0)


@pytest.mark.usefixtures("both_databases")
def test_a_round_passes_its_states_in_order(tmp_path: Path) -> None:
    records = Records(tmp_path)
    seen = [records.state()]
    records.phases.open(records.phase_spec("synthesise"), ["a"], 2.0)
    seen.append(records.state())
    records.phases.close(records.phase_spec("synthesise").key, LateReason.DEADLINE, 3.0)
    seen.append(records.state())
    records.phases.open(records.phase_spec(), ["a"], 4.0)
    seen.append(records.state())
    records.phases.close(records.phase_spec().key, LateReason.DEADLINE, 5.0)
    seen.append(records.state())
    records.rounds.enter("run", 1, RoundState.EVALUATING, 6.0)
    seen.append(records.state())
    records.runs.complete_round("run", completed(), 7.0)
    assert seen == list(RoundState)[:-1]
    assert records.state() is None
    assert records.runs.get("run").completed_rounds == 1


@pytest.mark.usefixtures("both_databases")
def test_a_run_that_is_paused_while_a_round_is_recorded_completes_if_it_was_the_last(
    tmp_path: Path,
) -> None:
    records = Records(tmp_path)
    for number, then in ((1, RunState.PAUSED), (2, RunState.COMPLETED)):
        spec = replace(records.phase_spec(), key=PhaseKey("run", number, "train"))
        records.rounds.begin("run", number, 1.0)
        records.phases.open(spec, ["a"], 2.0)
        records.phases.close(spec.key, LateReason.DEADLINE, 3.0)
        records.rounds.enter("run", number, RoundState.EVALUATING, 4.0)
        records.runs.pause("run", 5.0, by="operator")
        for again in (0.0, 100.0):
            standing = records.runs.complete_round("run", completed(number), 6.0 + again)
            assert standing == RunPosition(number, then)
        if then is RunState.PAUSED:
            records.runs.resume("run", 7.0, by="operator")
    run = records.runs.get("run")
    assert (run.state, run.completed_rounds) == (RunState.COMPLETED, 2)
    with pytest.raises(WrongState, match="run 'run' is completed"):
        records.runs.resume("run", 8.0)


@pytest.mark.usefixtures("both_databases")
def test_doing_a_step_again_changes_nothing(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for again in (0.0, 100.0):
        records.rounds.begin("run", 1, 1.0 + again)
        records.phases.open(records.phase_spec(), ["a", "b"] if again else ["a"], 2.0 + again)
        records.phases.close(records.phase_spec().key, LateReason.DEADLINE, 3.0 + again)
        if again:
            continue
        in_progress = records.rounds.in_progress("run")
        assert in_progress is not None
        assert (in_progress.began_at, in_progress.entered_at) == (1.0, 3.0)
    assert records.rounds.in_progress("run") == in_progress
    assert [task.device_id for task in records.phases.get(records.phase_spec().key).tasks] == ["a"]
    for again in (0.0, 100.0):
        if not again:
            records.rounds.enter("run", 1, RoundState.EVALUATING, 4.0)
        records.runs.complete_round("run", completed(), 5.0 + again)
    assert records.rounds.completed("run") == (completed(),)


@pytest.mark.usefixtures("both_databases")
def test_a_step_out_of_order_is_refused_without_effect(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.phases.open(records.phase_spec(), ["a"], 2.0)
    with pytest.raises(WrongState, match="cannot become synthesising"):
        records.phases.open(records.phase_spec("synthesise"), ["a"], 3.0)
    assert records.phases.find(records.phase_spec("synthesise").key) is None
    with pytest.raises(WrongState, match="cannot become evaluating"):
        records.rounds.enter("run", 1, RoundState.EVALUATING, 3.0)
    with pytest.raises(WrongState, match="cannot become completed"):
        records.runs.complete_round("run", completed(), 3.0)
    assert records.rounds.completed("run") == ()
    assert records.state() is RoundState.TRAINING


@pytest.mark.usefixtures("both_databases")
def test_a_result_for_an_unassigned_task_is_refused(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.phases.open(records.phase_spec(), ["a"], 2.0)
    task = records.tasks.lease("a", "", 3.0)
    assert task is not None
    records.tasks.fail("a", task.task_id, "broken", FailureCause.UNEXPECTED, 3.5)
    records.runs.pause("run", 3.7)
    records.runs.resume("run", 4.0)  # assigned again, not leased
    with pytest.raises(WrongState, match=r"assigned.*accepted"):
        records.tasks.accept("a", task.task_id, digest_of(b"u"), b"", 5.0)
    again = records.tasks.lease("a", "", 6.0)
    assert again is not None
    assert again.task_id == task.task_id
    assert records.tasks.accept("a", task.task_id, digest_of(b"u"), b"", 7.0) is False
    assert records.tasks.get("a", task.task_id).state is TaskState.ACCEPTED


@pytest.mark.usefixtures("both_databases")
def test_devices_that_ask_together_get_different_tasks(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.phases.open(records.phase_spec(), ["a", "b", "c"], 2.0)
    held = records.tasks.lease("b", "", 3.0)
    asking = [("a", ""), ("b", "run"), ("c", "another"), ("d", ""), ("a", "run")]
    tasks = records.tasks.lease_each(asking, 5.0)
    assert [task and task.device_id for task in tasks] == ["a", "b", None, None, "a"]
    assert tasks[1]
    assert held
    assert tasks[1].task_id == held.task_id
    assert tasks[4] == tasks[0]
    ends = {task.device_id: task.lease_expires_at for task in records.phase().tasks}
    lease_seconds = records.spec.policy.lease_seconds
    assert ends == {"a": 5.0 + lease_seconds, "b": 5.0 + lease_seconds, "c": 0.0}


@pytest.mark.usefixtures("both_databases")
def test_the_result_that_reaches_the_goal_closes_the_phase_with_it(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.phases.open(records.phase_spec(goal=2), ["a", "b", "c"], 2.0)
    tasks = {device: records.tasks.lease(device, "", 3.0) for device in "abc"}
    for device in "ab":
        task = tasks[device]
        assert task is not None
        records.tasks.accept(device, task.task_id, digest_of(device.encode()), b"", 4.0)
    assert records.state() is RoundState.AGGREGATING
    late = tasks["c"]
    assert late is not None
    with pytest.raises(TooLate, match="all results") as refused:
        records.tasks.accept("c", late.task_id, digest_of(b"c"), b"", 5.0)
    assert refused.value.reason == "goal-reached"
    assert [task.device_id for task in records.phases.results(late.key)] == ["a", "b"]
    # A repeated call gets the same answer.
    first = tasks["a"]
    assert first is not None
    assert records.tasks.accept("a", first.task_id, digest_of(b"a"), b"", 6.0) is True


@pytest.mark.usefixtures("both_databases")
def test_a_refused_result_does_not_affect_others_in_its_batch(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.phases.open(records.phase_spec(goal=2), ["a", "b", "c"], 2.0)
    tasks = {device: records.tasks.lease(device, "", 3.0) for device in "abc"}

    def handed_in(device: str, task_of: str, content: bytes) -> HandedIn:
        task = tasks[task_of]
        assert task is not None
        return HandedIn(device, task.task_id, digest_of(content), b"")

    a, b, c = (handed_in(device, device, device.encode()) for device in "abc")
    stolen, other = handed_in("b", "a", b"a"), handed_in("a", "a", b"other")
    unknown = HandedIn("a", "no-such-task", digest_of(b"a"), b"")
    outcomes = records.tasks.accept_each([stolen, a, unknown, a, other, b, c, b], 4.0)
    assert [outcome for outcome in outcomes if isinstance(outcome, Acceptance)] == [
        Acceptance(already=False, stage=TaskStage.TAKEN),
        Acceptance(already=True),
        Acceptance(already=False, moves_round=True, stage=TaskStage.TAKEN),
        Acceptance(already=True),
    ]
    refused = [type(outcome) for outcome in outcomes if not isinstance(outcome, Acceptance)]
    assert refused == [NotAllowed, NotFound, Conflict, TooLate]
    key = PhaseKey("run", 1, "train")
    assert [task.device_id for task in records.phases.results(key)] == ["a", "b"]
    assert records.state() is RoundState.AGGREGATING


@pytest.mark.usefixtures("both_databases")
def test_a_result_of_a_reassigned_task_does_not_stop_others_in_its_batch(
    tmp_path: Path,
) -> None:
    records = Records(tmp_path)
    records.phases.open(records.phase_spec(), ["a", "b", "c"], 2.0)
    tasks = {device: records.tasks.lease(device, "", 3.0) for device in "abc"}
    handed_in = [
        HandedIn(device, task.task_id, digest_of(device.encode()), b"")
        for device, task in tasks.items()
        if task
    ]
    records.tasks.fail("b", handed_in[1].task_id, "oops", FailureCause.UNEXPECTED, 3.5)
    records.runs.pause("run", 3.6, by="operator")
    records.runs.resume("run", 3.7, "operator")  # a second chance for b
    a, b, c = records.tasks.accept_each(handed_in, 4.0)
    assert isinstance(b, WrongState)
    assert a == c == Acceptance(already=False, stage=TaskStage.TAKEN)
    assert [task.device_id for task in records.phases.results(records.phase_spec().key)] == [
        "a",
        "c",
    ]


def test_the_last_result_to_come_moves_a_round_that_wants_more(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.phases.open(records.phase_spec(goal=3), ["a", "b"], 2.0)
    moves = []
    for device in "ab":
        task = records.tasks.lease(device, "", 3.0)
        assert task is not None
        handed_in = HandedIn(device, task.task_id, digest_of(device.encode()), b"")
        moves += records.tasks.accept_each([handed_in], 4.0)
    assert [isinstance(move, Acceptance) and move.moves_round for move in moves] == [False, True]
