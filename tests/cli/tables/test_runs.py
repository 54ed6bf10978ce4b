from dataclasses import replace
from datetime import timedelta

import pytest
from rich.console import Console, RenderableType

from hfmds.cli.demo.summary import summarise
from hfmds.cli.tables.devices import devices_table, failures_of
from hfmds.cli.tables.layout import state_text
from hfmds.cli.tables.runs import comparison_table, rounds_table, run_table, runs_table
from hfmds.cli.text import ago, counted, percent, seconds, size, sparkline
from hfmds.domain.devices import DeviceProfile, DeviceState, Eligibility
from hfmds.domain.methods import FedMix, FedProx, Hfmds, Method
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.recipe import Sampling
from hfmds.domain.round_policy import (
    Asynchronous,
    EarlyStop,
    EvaluationByDevices,
    Retention,
    RoundPolicy,
)
from hfmds.domain.runs import RunSpec, RunState
from hfmds.domain.tasks import TaskStage
from tests.cli.values import (
    MOMENT,
    a_device,
    a_followed_run,
    a_round,
    a_run,
    a_spec,
)


def shown(table: RenderableType, width: int = 120) -> str:
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def has_row(text: str, *cells: str) -> bool:
    return any(all(cell in line for cell in cells) for line in text.splitlines())


def test_runs() -> None:
    paused = a_run("run-2", RunState.PAUSED, state_reason="no space left")
    text = shown(runs_table([a_run(completed_rounds=2), paused]))
    assert has_row(text, "run-1", "fedavg", "running", "2/3", "50.0 %", "1.250", "training 1/2")
    assert has_row(text, "run-2", "paused", "0/3", "no space left")


def test_a_run_before_its_first_round_has_dashes() -> None:
    text = shown(runs_table([a_run()]))
    assert has_row(text, "run-1", "0/3", "-", "training 1/2")


def test_run() -> None:
    followed = a_followed_run("HFMDS", [0.5, 0.6], pool=True)
    text = shown(run_table(followed.run, MOMENT + timedelta(minutes=2)))
    assert has_row(text, "created", "2026-03-01 12:30:00 UTC, 2 min 0 s ago")
    assert has_row(text, "method", "hfmds, 3 rounds, seed 0")
    assert has_row(text, "training", "learning rate 0.005", "alpha 0.1")
    assert has_row(text, "hfmds", "every rounds 20, first round 20, samples per device 100")
    assert "mu 0.5" in text
    assert has_row(text, "rounds", "all devices, at least 2, deadline 10 min 0 s")


def test_a_run_shows_its_pool_policy() -> None:
    spec = a_spec(method=Hfmds())
    assert "pool" not in shown(run_table(a_run(spec=spec), MOMENT))
    policy = PoolPolicy(psnr_nearest_max_db=20, leakage_action="drop")
    spec = replace(spec, recipe=replace(spec.recipe, pool=policy))
    text = shown(run_table(a_run(spec=spec), MOMENT))
    assert has_row(text, "pool", "psnr nearest max db 20, leakage action drop")


def test_a_run_shows_its_round_policy() -> None:
    spec = a_spec()
    recipe = replace(spec.recipe, cohort_size=10, sampling=Sampling("power_of_choice", 20))
    eligibility = Eligibility(
        ("site=a",), 2_000_000, 7, require_charging=True, require_unmetered=True
    )
    policy = RoundPolicy(2, task_deadline_seconds=90, eligibility=eligibility)
    text = shown(run_table(a_run(spec=RunSpec(recipe, policy)), MOMENT))
    assert has_row(text, "rounds", "10 devices (13 are asked), at least 2", "a task 1 min 30 s")
    assert has_row(text, "drawn", "power of choice of 20 candidates")
    assert has_row(text, "asked are", "site=a, 2.0 MB free, 7 samples, charging, unmetered")
    asynchronous = RoundPolicy(asynchronous=Asynchronous(4, max_staleness=3))
    text = shown(run_table(a_run(spec=RunSpec(spec.recipe, asynchronous)), MOMENT))
    assert has_row(text, "asynchronous", "4 results, weighing 1 / (1 + staleness)^0.5")
    assert "at most 3 rounds old, all devices at work" in text


def test_single_items_are_counted_in_the_singular() -> None:
    spec = a_spec(rounds=1)
    recipe = replace(
        spec.recipe, training=replace(spec.recipe.training, local_epochs=1), cohort_size=1
    )
    policy = RoundPolicy(
        1, evaluation=EvaluationByDevices(1), early_stop=EarlyStop(1), retention=Retention(3, 2)
    )
    text = shown(run_table(a_run(spec=RunSpec(recipe, policy)), MOMENT))
    assert has_row(text, "method", "fedavg, 1 round, seed 0")
    assert has_row(text, "training", "batch", "1 local epoch,")
    assert has_row(text, "rounds", "1 device (2 are asked), at least 1")
    assert has_row(text, "evaluated", "by 1 device, every round")
    assert has_row(text, "stops early", "after 1 evaluated round without improvement")
    assert has_row(text, "models kept", "the best, the last 3, one every 2 rounds")


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (FedProx(mu=0.25), "mu 0.25"),
        (FedMix(0.25, 3, 40), "mixing 0.25, images per average 3, samples per device 40"),
    ],
)
def test_a_run_shows_its_methods_settings(method: Method, settings: str) -> None:
    text = shown(run_table(a_run(spec=a_spec(method=method)), MOMENT))
    assert has_row(text, "method", f"{method.name}, 3 rounds")
    assert has_row(text, method.name, settings)
    assert "alpha" not in text  # these methods do not use it


def test_fedavg_has_no_settings_to_show() -> None:
    text = shown(run_table(a_run(), MOMENT))
    assert [line for line in text.splitlines() if line.startswith("fedavg")] == []


def test_a_paused_run_shows_its_reason_and_phase() -> None:
    run = a_run(state=RunState.PAUSED, completed_rounds=1, state_reason="no space left")
    text = shown(run_table(run, MOMENT))
    assert has_row(text, "state", "paused")
    assert has_row(text, "reason", "no space left")
    assert has_row(text, "paused in", "round 2: training 1/2")


@pytest.mark.parametrize("state", [*RunState, *DeviceState])
def test_every_state_has_its_colour(state: RunState | DeviceState) -> None:
    assert state_text(state).style


def test_rounds() -> None:
    text = shown(rounds_table([a_round(1, None), a_round(2, 0.613, pool=True)]))
    assert has_row(text, "1", "2", "-", "1.250", "3.0 MB", "2.5 s")
    assert has_row(text, "2", "61.3 %", "40 new", "10.1 dB", "3.0 MB")


def test_devices() -> None:
    text = shown(devices_table([a_device()], MOMENT + timedelta(seconds=3), width=120))
    assert has_row(text, "device-00", "working", "60", "7", "1", "torch-cpu", "3.0 s ago", "task-9")


def test_labels_of_devices_are_shown_if_any_exist() -> None:
    plain = a_device()
    assert "labels" not in shown(devices_table([plain], MOMENT, width=160))
    labelled = replace(plain, profile=replace(plain.profile, labels=("site=a", "x=y")))
    text = shown(devices_table([labelled, plain], MOMENT, width=160), width=160)
    assert has_row(text, "device", "labels")
    assert has_row(text, "device-00", "site=a, x=y")


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (70, "task, engine, version, labels, stage, samples"),
        (80, "task, engine, version, labels, stage"),
        (100, "task, engine, version, labels"),
        (120, "task, engine"),
        (160, ""),
    ],
)
def test_a_device_is_one_line_in_a_terminal_of_any_width(width: int, left_out: str) -> None:
    names = ("device-0123456789ab", "camera-north-gate-7")
    profile = DeviceProfile(600, "0.1.0", "onnxruntime-cpu", ("power=mains", "site=north"))
    devices = [
        replace(
            a_device(name),
            profile=profile,
            task_id="3f" * 16,
            stage=TaskStage.COMPUTED,
            last_failure="a long story",
        )
        for name in names
    ]
    text = shown(devices_table(devices, MOMENT + timedelta(days=12, hours=14), width), width)
    for name in names:
        assert has_row(text, name, "working", "7", "1", "12 days 14 h ago")
    head = next(n for n, line in enumerate(text.splitlines()) if "─" in line)
    rows = text.splitlines()[head + 1 :]
    assert [row.split()[:1] for row in rows[: len(names) + 1]] == [*([n] for n in names), []]
    assert not left_out or f"no room for {left_out};" in " ".join(text.split())
    assert left_out or "no room" not in text
    assert "a long story" not in text
    assert [str(line) for line in failures_of(devices)] == [f"{n}: a long story" for n in names]


def test_comparison() -> None:
    runs = [a_followed_run("FedAvg", [0.1, 0.4]), a_followed_run("HFMDS", [0.3, 0.8], pool=True)]
    text = shown(comparison_table([summarise(run) for run in runs]))
    assert has_row(text, "FedAvg", "25.0 %", "40.0 %", "-", "6.0 MB")
    assert has_row(text, "HFMDS", "55.0 %", "80.0 %", "10.1 dB", "11.2 dB", "12.3 dB", "40")


def test_numbers_that_matter_are_not_cut_at_80_columns() -> None:
    runs = [a_followed_run("FedAvg, lr/10", [0.1, 0.4]), a_followed_run("HFMDS-FL", [1.0], True)]
    text = shown(comparison_table([summarise(run) for run in runs]), width=80)
    assert has_row(text, "FedAvg, lr/10", "25.0 %", "6.0 MB")
    assert "…" not in text


def test_ids_with_brackets_are_not_markup() -> None:
    text = shown(runs_table([a_run(state=RunState.PAUSED, state_reason="lost [device]")]))
    assert "lost [device]" in text


def test_text() -> None:
    assert percent(0.6125) == "61.3 %"
    assert percent(None) == "-"
    assert counted(1, "batch", "batches") == "1 batch"
    assert [counted(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
    assert [size(n) for n in (0, 14_200, 1_234_567)] == ["0.0 kB", "14.2 kB", "1.2 MB"]
    assert [seconds(s) for s in (0.04, 59.9, 61, 7200, 30 * 86400 - 240)] == [
        "0.0 s",
        "59.9 s",
        "1 min 1 s",
        "2 h 0 min",
        "29 days 23 h",
    ]
    assert ago(MOMENT + timedelta(seconds=5), MOMENT) == "0.0 s ago"
    assert sparkline([0, 0.5, 1, 2, -1]) == "▁▅██▁"
    assert len(sparkline([0.5] * 100)) == 24
