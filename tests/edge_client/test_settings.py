"""Settings of a device: defaults and refusals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_client.settings import EdgeSettings
from hfmds.errors import ConfigurationError
from hfmds.service.process.settings import describe, load_settings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HFMDS_"):
            monkeypatch.delenv(name)


def test_data_is_the_only_required_setting() -> None:
    settings = load_settings(EdgeSettings, ["--data", "digits"])
    assert settings.coordinator_peer.address == "127.0.0.1:7401"
    assert settings.store_peer.address == "127.0.0.1:7411"
    assert settings.metrics_listen == "127.0.0.1:7421"
    assert settings.state_dir == Path("hfmds-data/device")
    assert settings.own_class_names == ()


def test_class_names_are_split() -> None:
    settings = load_settings(EdgeSettings, ["--data=x", "--class-names=cat, dog ,emu"])
    assert settings.own_class_names == ("cat", "dog", "emu")


def test_labels_are_split_and_power_and_network_are_optional() -> None:
    silent = load_settings(EdgeSettings, ["--data=x"])
    assert (silent.own_labels, silent.charging, silent.unmetered) == ((), None, None)
    settings = load_settings(
        EdgeSettings, ["--data=x", "--labels=site=a, model=b", "--charging", "--no-unmetered"]
    )
    assert (settings.own_labels, settings.charging, settings.unmetered) == (
        ("model=b", "site=a"),
        True,
        False,
    )


def test_the_environment_sets_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFMDS_DATA", "digits:20")
    monkeypatch.setenv("HFMDS_STORE", "127.0.0.1:7499")
    monkeypatch.setenv("HFMDS_UNMETERED", "false")
    settings = load_settings(EdgeSettings)
    assert settings.data == "digits:20"
    assert settings.unmetered is False
    assert (settings.store, settings.store_peer.setting) == ("127.0.0.1:7499", "HFMDS_STORE")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], r"HFMDS_DATA \(--data\) is not set"),
        (["--data=x", "--engine=abacus"], r"HFMDS_ENGINE \(--engine\) is 'abacus'.*torch"),
        (["--data=x", "--device-id=a/b"], r"HFMDS_DEVICE_ID .* is 'a/b'; it must be 1 to 128"),
        (["--data=x", "--run=../x"], r"HFMDS_RUN .* is '../x'"),
        (["--data=x", "--labels=north"], r"HFMDS_LABELS .* is 'north'; it must be NAME=VALUE"),
        (["--data=x", "--labels=a=1,a=2"], r"HFMDS_LABELS .* has label 'a' twice"),
        (["--data=x", "--threads=0"], r"HFMDS_THREADS .* is '0'"),
        (["--data=x", "--wait-seconds=600"], r"HFMDS_WAIT_SECONDS"),
        (["--data=x", "--only-when=sunny"], r"HFMDS_ONLY_WHEN .* is 'sunny'.*idle, charging"),
        (["--data=x", "--condition-command=a 'b"], r"HFMDS_CONDITION_COMMAND .*command line"),
        (["--data=x", "--nice=20"], r"HFMDS_NICE .* is '20'"),
        (["--data=x", "--max-memory-bytes=100"], r"HFMDS_MAX_MEMORY_BYTES .* is '100'"),
        (["--data=x", "--coordinator=here"], r"HFMDS_COORDINATOR .* is 'here'.*host:port"),
    ],
)
def test_bad_setting_is_named(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_settings(EdgeSettings, flags)


def test_the_limits_of_the_owner_are_parsed() -> None:
    free = load_settings(EdgeSettings, ["--data=x"])
    assert (free.required_conditions, free.condition_arguments) == ((), ())
    assert (free.max_memory_bytes, free.traffic_bytes_per_day, free.nice) == (None, None, 0)
    bound = load_settings(
        EdgeSettings,
        ["--data=x", "--only-when=charging, idle", "--condition-command=/bin/ask 'a b'", "--once"],
    )
    assert bound.required_conditions == ("charging", "idle")
    assert bound.condition_arguments == ("/bin/ask", "a b")
    assert bound.once


ENROLS = ["--data=x", "--enrol=hub:7404", "--tls-authority=fleet.pem"]


def test_a_device_that_enrols_keeps_its_certificate_in_its_state_folder() -> None:
    settings = load_settings(EdgeSettings, [*ENROLS, "--enrol-token= secret ", "--state-dir=s"])
    assert settings.tls is not None
    assert settings.tls.certificate == Path("s/identity/certificate.pem")
    assert settings.token == "secret"
    assert "secret" not in str(settings) + str(describe(settings))


def test_a_token_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    assert load_settings(EdgeSettings, [*ENROLS, f"--enrol-token-file={file}"]).token == "secret"
    missing = load_settings(EdgeSettings, [*ENROLS, "--enrol-token-file=nowhere"])
    with pytest.raises(ConfigurationError, match="nowhere"):
        _ = missing.token


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--data=x", "--enrol-token=t"], "set HFMDS_ENROL"),
        (["--data=x", "--enrol=hub:7404"], "set HFMDS_TLS_AUTHORITY, and neither"),
        ([*ENROLS, "--tls-key=k"], "set HFMDS_TLS_AUTHORITY, and neither"),
        ([*ENROLS, "--enrol-token=t", "--enrol-token-file=f"], "not both"),
    ],
)
def test_half_an_enrolment_is_refused(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_settings(EdgeSettings, argv)
