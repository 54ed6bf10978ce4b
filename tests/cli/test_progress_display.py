import io
from dataclasses import replace

from rich.console import Console

from hfmds.cli.progress_display import LiveTable, PlainLines, display_for
from hfmds.cli.watch_run import FollowedRun
from hfmds.domain.learning import DeviceEvaluation
from hfmds.domain.runs import Phase, Progress, RunState
from tests.cli.values import a_followed_run, a_round, a_run, a_spec


def terminal(width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, _environ={"TERM": "xterm"})


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_pipe_gets_lines_without_control_codes() -> None:
    console = Console(file=io.StringIO(), width=40)
    followed = FollowedRun("HFMDS-FL", a_run())
    with display_for(console, [followed]) as display:
        assert isinstance(display, PlainLines)
        display.changed(followed, [])
        display.changed(followed, [])
        rounds = [a_round(1), a_round(2, 0.625, pool=True)]
        followed.rounds.extend(rounds)
        display.changed(followed, rounds)
        followed.run = a_run(state=RunState.COMPLETED)
        display.changed(followed, [])
    text = written(console)
    lines = text.splitlines()
    assert "\x1b" not in text
    assert len(lines) == 4  # running, two rounds, completed
    assert lines[0].endswith("running")
    assert "round   2/3  accuracy  62.5 %  loss 1.250  PSNR 10.1 dB  pool 40 new" in lines[2]
    assert lines[2].endswith("took 2.5 s  best so far")
    assert lines[3].endswith("completed")


def test_a_pipe_gets_one_line_for_an_outage_of_the_coordinator() -> None:
    console = Console(file=io.StringIO())
    followed = FollowedRun("x", a_run())
    display = PlainLines(console)
    for reason in ("reset", "refused", "refused"):
        followed.away = f"{reason} by [::1]:7401"
        display.changed(followed, [])
    (line,) = written(console).splitlines()
    assert line.endswith("reset by [::1]:7401 (trying again)")


def a_paused_run() -> FollowedRun:
    return FollowedRun("x", a_run(state=RunState.PAUSED, state_reason="a full [disk]; clear it"))


def test_a_pipe_gets_the_reason_of_a_pause_and_the_remedy() -> None:
    console = Console(file=io.StringIO(), width=40)
    followed = a_paused_run()
    display = PlainLines(console)
    for state in (followed.run, followed.run, a_run(), a_run(state=RunState.PAUSED)):
        followed.run = state
        display.changed(followed, [])
    outage_line, resumed, again = written(console).splitlines()
    assert outage_line.endswith(
        "paused: a full [disk]; clear it (resume it with: hfmds run resume run-1)"
    )
    assert resumed.endswith("running")
    assert again.endswith("  paused (resume it with: hfmds run resume run-1)")


def test_a_terminal_shows_the_reason_of_a_pause_and_the_remedy() -> None:
    console = terminal()
    followed = a_paused_run()
    with display_for(console, [followed]):
        pass
    text = written(console)
    assert "run run-1: paused: a full [disk]; clear it" in text
    assert "hfmds run resume run-1" in text


def test_a_terminal_shows_why_a_run_stopped_early() -> None:
    console = terminal()
    reason = "stopped early: no better"
    with display_for(
        console, [FollowedRun("x", a_run(state=RunState.COMPLETED, state_reason=reason))]
    ):
        pass
    assert "run run-1: completed: stopped early: no better" in written(console)


def test_a_terminal_gets_a_table_with_curves() -> None:
    console = terminal()
    runs = [a_followed_run("FedAvg", [0.1, 0.2]), a_followed_run("HFMDS", [0.0, 1.0], pool=True)]
    with display_for(console, runs) as display:
        assert isinstance(display, LiveTable)
        display.changed(runs[0], [])
    text = written(console)
    assert "▁█" in text
    assert "10.1 dB" in text
    assert "completed" in text


def test_a_terminal_shows_the_accuracy_and_the_time_left() -> None:
    console = terminal()
    by_devices = DeviceEvaluation(0.375, 2.0, 90, devices=4)
    rounds = [a_round(1, 0.75), replace(a_round(2, 0.5), device_evaluation=by_devices)]
    run = FollowedRun("x", a_run(completed_rounds=2, spec=a_spec(rounds=12)), rounds)
    with display_for(console, [run]):
        pass
    expected = (
        "best 75.0 % after round 1, by 4 devices 37.5 %, a round takes 2.5 s, about 25.0 s left"
    )
    assert f"x: {expected}" in written(console)


def test_without_a_held_out_set_the_accuracy_of_devices_is_shown() -> None:
    console = Console(file=io.StringIO(), width=40)
    evaluations = [DeviceEvaluation(share, 2.0, 90, devices=4) for share in (0.75, 0.5)]
    rounds = [
        replace(a_round(number, None), device_evaluation=evaluation)
        for number, evaluation in enumerate(evaluations, start=1)
    ]
    run = FollowedRun("x", a_run(completed_rounds=2), rounds)
    PlainLines(console).changed(run, rounds)
    first, second, _ = written(console).splitlines()
    assert "accuracy  75.0 %  loss 1.250  moved" in first
    assert first.endswith("best so far")
    assert second.endswith("took 2.5 s")


def test_a_running_run_shows_its_phase_and_absent_devices() -> None:
    console = terminal()
    run = FollowedRun("x", a_run(completed_rounds=1), away="nobody answers")
    with display_for(console, [run]):
        pass
    text = written(console)
    assert "2/3" in text
    assert "training 1/2" in text
    assert "nobody answers (trying again)" in text


def test_a_run_that_waits_for_the_store_shows_this() -> None:
    console = terminal(width=80)
    progress = Progress(2, Phase.WAITING_FOR_STORE, 0, 0)
    with display_for(console, [FollowedRun("FedAvg, lr/10", a_run(progress=progress))]):
        pass
    assert "waiting for the store  " in written(console)
    assert "0/0" not in written(console)


def test_a_narrow_terminal_keeps_the_important_columns() -> None:
    console = terminal(width=80)
    runs = [
        a_followed_run("FedAvg, lr/10", [0.1] * 10),
        a_followed_run("HFMDS-FL", [1.0] * 10, True),
    ]
    with display_for(console, runs):
        pass
    text = written(console)
    assert all(part in text for part in ("100.0 %", "10.1 dB", "40", "30.0 MB"))
    assert "…" not in text
    assert "█" not in text


def test_a_dumb_terminal_gets_lines() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(display_for(console, []), PlainLines)
