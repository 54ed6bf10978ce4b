"""Commands with arguments, and their text, files and exit codes."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from hfmds.cli.app import app
from hfmds.cli.main import main
from hfmds.cli.recipe.keys import KEYS
from hfmds.domain.methods import Hfmds, Moon
from hfmds.domain.runs import RunState
from hfmds.service.monitoring.program_metrics import software_version
from tests.cli.fake_services import FakeCoordinator, serving
from tests.cli.values import a_device, a_round, a_run

REPOSITORY = Path(__file__).parents[2]
NO_SERVER = "127.0.0.1:9"  # the discard port has no listener

ROOT = Path(__file__).parents[2]
Output = pytest.CaptureFixture[str]


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCoordinator]:
    fake = FakeCoordinator()
    with serving(fake) as address:
        monkeypatch.setenv("HFMDS_COORDINATOR", address)
        yield fake


def test_create(coordinator: FakeCoordinator, capsys: Output, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("rounds = 4\n[training]\nalpha = 0.25\n")
    arguments = ["--recipe", str(recipe), "--run-id", "mine", "--refresh-every", "2"]
    assert main(["run", "create", *arguments]) == 0
    created = coordinator.runs["mine"].spec.recipe
    assert created.rounds == 4
    assert created.training.alpha == 0.25
    assert created.method == Hfmds(every_rounds=2, first_round=2)
    assert "run mine: created; follow it with: hfmds run watch mine" in capsys.readouterr().out


def test_create_with_json(coordinator: FakeCoordinator, capsys: Output) -> None:
    assert main(["run", "create", "--method", "fedavg", "--json"]) == 0
    created = json.loads(capsys.readouterr().out)
    assert created["run_id"].startswith("fedavg-")
    assert created["method"] == "fedavg"
    assert created["spec"]["recipe"]["method"] == {"name": "fedavg"}


def test_create_makes_one_run_though_its_answer_is_lost(coordinator: FakeCoordinator) -> None:
    coordinator.lost_answers = 2  # the channel retries each time
    assert main(["run", "create", "--method", "fedavg"]) == 0
    assert len(coordinator.runs) == 1


def test_create_another_method(coordinator: FakeCoordinator, capsys: Output) -> None:
    settings = ["--set", "moon.mu=2", "--set", "moon.temperature=0.25"]
    assert main(["run", "create", "--method", "moon", "--json", *settings]) == 0
    (run,) = coordinator.runs.values()
    assert run.spec.recipe.method == Moon(mu=2.0, temperature=0.25)
    created = json.loads(capsys.readouterr().out)["spec"]["recipe"]["method"]
    assert created == {"name": "moon", "mu": 2.0, "temperature": 0.25}
    assert main(["run", "create", "--method", "moon", "--set", "fedprox.mu=2"]) == 2
    assert "fedprox.mu is given, but the method is moon" in capsys.readouterr().err


def test_a_wrong_recipe_never_reaches_the_coordinator(
    coordinator: FakeCoordinator, capsys: Output
) -> None:
    assert main(["run", "create", "--alpha", "3"]) == 2
    assert "training.alpha is 3.0; it must be in [0, 1]" in capsys.readouterr().err
    assert not coordinator.runs


def test_list(coordinator: FakeCoordinator, capsys: Output) -> None:
    assert main(["run", "list"]) == 0
    assert "no runs yet" in capsys.readouterr().out
    coordinator.runs["run-1"] = a_run(completed_rounds=2)
    assert main(["run", "list"]) == 0
    assert "run-1" in capsys.readouterr().out
    assert main(["run", "list", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert run["state"] == "running"
    assert run["last_round"]["evaluation"]["accuracy"] == 0.5
    assert run["created_at"] == "2026-03-01T12:30:00+00:00"


def test_a_run_of_a_later_version_does_not_hide_the_others(
    coordinator: FakeCoordinator, capsys: Output
) -> None:
    coordinator.runs = {name: a_run(name) for name in ("old", "new")}
    coordinator.of_later_version = {"new"}
    assert main(["run", "list", "--json"]) == 0
    output = capsys.readouterr()
    assert [run["run_id"] for run in json.loads(output.out)] == ["old"]
    assert "run new cannot be shown: Recipe.method is missing, or of a kind" in output.err
    assert "upgrade this hfmds" in output.err
    del coordinator.runs["old"]
    assert main(["run", "list"]) == 0
    assert "no runs yet" not in capsys.readouterr().out


def test_show(coordinator: FakeCoordinator, capsys: Output) -> None:
    coordinator.runs["run-1"] = a_run(completed_rounds=1)
    coordinator.rounds = [a_round(1)]
    assert main(["run", "show", "run-1"]) == 0
    assert "learning rate 0.005" in capsys.readouterr().out
    assert main(["run", "show", "run-1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["rounds"][0]["number"] == 1
    assert main(["run", "show", "other"]) == 1
    assert "there is no run other" in capsys.readouterr().err


def test_watch(coordinator: FakeCoordinator, capsys: Output) -> None:
    coordinator.runs["run-1"] = a_run(completed_rounds=1)
    coordinator.rounds = [a_round(1)]
    ended = a_run(state=RunState.COMPLETED, completed_rounds=2)
    coordinator.changes = [(ended, [a_round(1), a_round(2)])]
    assert main(["run", "watch", "run-1"]) == 0
    assert coordinator.watched_after == [1]
    text = capsys.readouterr().out
    assert text.count("round   1/3") == text.count("round   2/3") == 1
    assert "completed" in text


def test_watch_goes_on_through_a_pause_and_says_how_to_end_it(
    coordinator: FakeCoordinator, capsys: Output
) -> None:
    paused = a_run(state=RunState.PAUSED, state_reason="no space left; make some")
    coordinator.runs["run-1"] = paused
    ended = a_run(state=RunState.COMPLETED, completed_rounds=1)
    coordinator.changes = [(paused, []), (a_run(), []), (ended, [a_round(1)])]
    assert main(["run", "watch", "run-1"]) == 0
    text = capsys.readouterr().out
    hint = "paused: no space left; make some (resume it with: hfmds run resume run-1)"
    assert text.count(hint) == 1
    assert text.index(hint) < text.index("running") < text.index("completed")


def test_watching_a_run_that_is_cancelled_is_exit_code_1(
    coordinator: FakeCoordinator, capsys: Output
) -> None:
    coordinator.runs["run-1"] = a_run(state=RunState.CANCELLED)
    assert main(["run", "watch", "run-1"]) == 1
    assert "run run-1 was cancelled" in capsys.readouterr().err


def test_lists_are_read_to_their_last_page(coordinator: FakeCoordinator, capsys: Output) -> None:
    coordinator.runs = {name: a_run(name, completed_rounds=5) for name in "abcde"}
    coordinator.rounds = [a_round(number) for number in range(1, 6)]
    coordinator.devices = [a_device(f"device-{number}") for number in range(5)]

    def listed(*command: str) -> Any:
        assert main([*command, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert [run["run_id"] for run in listed("run", "list")] == list("abcde")
    assert [done["number"] for done in listed("run", "show", "a")["rounds"]] == [1, 2, 3, 4, 5]
    assert len({device["device_id"] for device in listed("devices")}) == 5


@pytest.mark.parametrize(
    ("command", "state"), [("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")]
)
def test_pause_resume_and_cancel(
    coordinator: FakeCoordinator, capsys: Output, command: str, state: str
) -> None:
    coordinator.runs["run-1"] = a_run()
    assert main(["run", command, "run-1"]) == 0
    assert f"run run-1: {state}" in capsys.readouterr().out
    assert main(["run", command, "other"]) == 1


def test_devices(coordinator: FakeCoordinator, capsys: Output) -> None:
    assert main(["devices"]) == 0
    assert "no devices yet" in capsys.readouterr().out
    coordinator.devices = [replace(a_device(), last_failure="no space left")]
    assert main(["devices"]) == 0
    output = capsys.readouterr().out
    assert "several" not in output
    assert output.endswith("\nwhy they gave up their last task:\ndevice-00: no space left\n")
    coordinator.devices = [replace(a_device(), has_twin=True)]
    assert main(["devices"]) == 0
    assert "\ndevice-00: several devices run with this id; give each" in capsys.readouterr().out
    assert main(["devices", "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)
    assert device["profile"]["engine"] == "torch-cpu"


@pytest.mark.parametrize("command", [["run", "list"], ["devices"], ["run", "watch", "x"]])
def test_an_unavailable_coordinator_is_an_error(command: list[str], capsys: Output) -> None:
    assert main([*command, "--coordinator", NO_SERVER]) == 1
    output = capsys.readouterr().err
    assert output.startswith(f"hfmds: coordinator at {NO_SERVER} is unavailable")
    assert "is HFMDS_COORDINATOR its address, " in output
    assert len(output.splitlines()) == 1


def test_a_malformed_address_is_refused(capsys: Output) -> None:
    assert main(["run", "list", "--coordinator", "nonsense"]) == 2
    assert "'nonsense'; it must be host:port" in capsys.readouterr().err


def test_wrong_usage_is_exit_code_2(capsys: Output) -> None:
    assert main(["run", "lst"]) == 2
    assert main(["run", "create", "--rounds", "many"]) == 2
    assert main(["demo", "--report", "/proc/nowhere/report"]) == 2
    assert "cannot make the report folder /proc/nowhere/report" in capsys.readouterr().err


def test_every_key_of_a_recipe_is_listed(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["run", "keys"]) == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [key for key in shown if key in KEYS] == list(KEYS)
    assert main(["run", "keys", "eligibility"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("eligibility.labels a list of strings - ") for line in lines)
    assert any(
        line.startswith("eligibility.minimum_samples a whole number, at least 0 0 ")
        for line in lines
    )
    assert any(
        line.startswith("eligibility.require_charging true or false false ") for line in lines
    )
    assert not [line for line in lines if line.startswith("training")]
    assert main(["run", "keys", "asynchronous"]) == 0
    assert "a whole number, at least 1 required" in " ".join(capsys.readouterr().out.split())
    assert main(["run", "keys", "fedavg"]) == 0
    assert "the table fedavg has no keys" in capsys.readouterr().out
    assert main(["run", "keys", "eligibilty"]) == 2
    assert "did you mean [eligibility]?" in capsys.readouterr().err


def test_a_full_disk_is_one_line(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["run", "keys"]) == 1
    assert capsys.readouterr().err.startswith("hfmds: cannot write the output")


def test_the_version_is_printed(capsys: Output) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hfmds {software_version()}\n"


def commands_in(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_in(below, (*path, name))


def test_help_shows_every_word_that_was_written(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def letters(text: str) -> str:
        return re.sub(r"[\s│`]", "", text)

    monkeypatch.setenv("COLUMNS", "400")  # tables stay unbroken
    for path, command in commands_in(get_command(app)):
        assert main([*path, "--help"]) == 0
        shown = letters(capsys.readouterr().out)
        for text in [command.help, *(param.help for param in command.params)]:
            # Rich would silently drop text like [n, channels] or <class> as markup.
            assert letters(text or "") in shown, (path, text)


def test_help_of_every_command_needs_no_torch() -> None:
    commands = [
        [], ["demo"], ["run"], ["run", "create"], ["run", "list"], ["run", "show"],
        ["run", "watch"], ["run", "pause"], ["run", "resume"], ["run", "cancel"], ["model"],
        ["model", "list"], ["model", "export"],
        ["devices"], ["snapshots"], ["snapshots", "list"], ["snapshots", "show"],
        ["snapshots", "export"], ["snapshots", "grid"], ["snapshots", "diff"],
        ["run", "delete"], ["run", "funnel"], ["status"], ["drain"],
        ["audit"], ["audit", "show"], ["audit", "verify"],
    ]  # fmt: skip
    script = f"""
import sys
from hfmds.cli.main import main
for command in {commands!r}:
    assert main([*command, "--help"]) == 0, command
import hfmds.cli.demo.demo
heavy = {{"torch", "sklearn", "matplotlib", "coordinator", "edge_client", "synthesis_store"}}
found = heavy & set(sys.modules)
assert not found, found
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: hfmds") == len(commands)
