import os
from pathlib import Path

import pytest
from pydantic import Field, SecretStr, model_validator

from hfmds.errors import ConfigurationError
from hfmds.service.process.settings import (
    PeerAddresses,
    ServerSettings,
    ServiceSettings,
    describe,
    load_settings,
    unknown_environment,
)


class CallerSettings(ServiceSettings):
    coordinator: PeerAddresses = Field(description="host:port of the coordinator")
    offline: bool = Field(False, description="never call | anybody")
    token: SecretStr | None = Field(None, description="proof of identity", min_length=8)
    first: int = Field(0, description="lower end")
    last: int = Field(9, description="upper end")

    @model_validator(mode="after")
    def _in_order(self) -> "CallerSettings":
        if self.first > self.last:
            raise ValueError(f"HFMDS_FIRST is {self.first}, above HFMDS_LAST, {self.last}")
        return self


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HFMDS_"):
            monkeypatch.delenv(name)


def test_a_flag_wins_over_the_environment_and_that_over_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HFMDS_LISTEN", "127.0.0.1:7401")
    monkeypatch.setenv("HFMDS_METRICS_LISTEN", "127.0.0.1:7402")
    settings = load_settings(ServerSettings, ["--listen", "127.0.0.1:9"])
    assert settings.listen == "127.0.0.1:9"
    assert settings.metrics_listen == "127.0.0.1:7402"
    assert settings.log_level == "info"


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFMDS_ADDRESS_FILE", "")
    assert load_settings(ServerSettings).address_file is None


def test_a_boolean_is_a_flag_of_its_own() -> None:
    assert load_settings(CallerSettings, ["--coordinator=a:1", "--offline"]).offline
    assert not load_settings(CallerSettings, ["--coordinator=a:1", "--no-offline"]).offline


def test_storage_is_in_the_data_folder_unless_told_otherwise(tmp_path: Path) -> None:
    settings = load_settings(ServerSettings, [f"--data-dir={tmp_path}"])
    assert settings.resolved_database_url == f"sqlite:///{tmp_path}/state.sqlite3"
    assert settings.resolved_blobs_url == f"file://{tmp_path}/blobs"
    settings = load_settings(
        ServerSettings, ["--database-url=postgresql://u:p@h/d", "--blobs-url=file:///b"]
    )
    assert settings.resolved_database_url == "postgresql://u:p@h/d"
    assert settings.resolved_blobs_url == "file:///b"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "HFMDS_LISTEN",
            "7401",
            "HFMDS_LISTEN (--listen) is '7401'; it must be host:port with a port from 0 to 65535",
        ),
        (
            "HFMDS_METRICS_LISTEN",
            "h:70000",
            (
                "HFMDS_METRICS_LISTEN (--metrics-listen) is 'h:70000'; "
                "it must be host:port with a port from 0 to 65535"
            ),
        ),
        (
            "HFMDS_LOG_FORMAT",
            "xml",
            "HFMDS_LOG_FORMAT (--log-format) is 'xml'; it must be one of json, console",
        ),
        (
            "HFMDS_MAX_BLOB_BYTES",
            "many",
            "HFMDS_MAX_BLOB_BYTES (--max-blob-bytes) is 'many'; it must be a whole number",
        ),
        (
            "HFMDS_MAX_CONCURRENT_RPCS",
            "0",
            ("HFMDS_MAX_CONCURRENT_RPCS (--max-concurrent-rpcs) is '0'; it must be at least 1"),
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(ServerSettings)
    assert str(refusal.value) == message


def test_all_wrong_settings_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(CallerSettings, ["--log-level=loud", "--coordinator=host:0"])
    assert str(refusal.value).splitlines() == [
        "HFMDS_LOG_LEVEL (--log-level) is 'loud'; it must be one of debug, info, warning, error",
        (
            "HFMDS_COORDINATOR (--coordinator) is 'host:0'; "
            "it must be host:port with a port from 1 to 65535"
        ),
    ]


def test_a_missing_setting_is_told_with_its_meaning() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(CallerSettings)
    assert str(refusal.value) == (
        "HFMDS_COORDINATOR (--coordinator) is not set. host:port of the coordinator"
    )


def test_a_wrong_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFMDS_TOKEN", "pssst")
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(CallerSettings, ["--coordinator=a:1"])
    assert "HFMDS_TOKEN (--token) is a hidden value; it must" in str(refusal.value)
    assert "pssst" not in str(refusal.value)


def test_a_rule_over_several_settings_speaks_for_itself() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(CallerSettings, ["--coordinator=a:1", "--first=10"])
    assert str(refusal.value) == "HFMDS_FIRST is 10, above HFMDS_LAST, 9"


@pytest.mark.parametrize(
    ("argument", "datum"),
    [
        ("--lisen=secret", "--listen"),
        ("--data=secret", "--data"),
        ("stray", "stray"),
        ("--listen", "--listen"),
    ],
)
def test_a_wrong_command_line_is_refused_without_its_value(
    capsys: pytest.CaptureFixture[str], argument: str, datum: str
) -> None:
    with pytest.raises(SystemExit) as end:
        load_settings(ServerSettings, [argument], program="server")
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert datum in error
    assert "secret" not in error


def test_help_lists_every_flag_with_its_description(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        load_settings(ServerSettings, ["--help"], program="coordinator")
    assert end.value.code == 0
    text = "".join(capsys.readouterr().out.split())
    assert text.startswith("Usage:coordinator")
    for name, field in ServerSettings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert f"HFMDS_{name.upper()}" in text
        assert field.description is not None
        assert "".join(field.description.split()) in text


def test_an_unknown_variable_is_found_with_the_nearest_name() -> None:
    environment = {
        "HFMDS_LISTN": "a:1",
        "HFMDS_FAVOURITE_COLOUR": "blue",
        "HFMDS_LISTEN": "a:1",
        "PATH": "/bin",
    }
    assert unknown_environment(ServerSettings, environment) == {
        "HFMDS_FAVOURITE_COLOUR": "",
        "HFMDS_LISTN": "HFMDS_LISTEN",
    }


def test_variables_that_kubernetes_injects_are_not_unknown() -> None:
    environment = {
        "HFMDS_COORDINATOR_SERVICE_HOST": "10.0.0.1",
        "HFMDS_COORDINATOR_SERVICE_PORT_GRPC": "7401",
        "HFMDS_COORDINATOR_PORT": "tcp://10.0.0.1:7401",
        "HFMDS_COORDINATOR_PORT_7401_TCP_ADDR": "10.0.0.1",
    }
    assert unknown_environment(ServerSettings, environment) == {}


def test_the_description_hides_secrets() -> None:
    settings = load_settings(
        ServerSettings,
        ["--database-url=postgresql://u:pssst@h/d", "--blobs-url=s3://key:pssst@bucket"],
    )
    described = describe(settings)
    assert described["log_level"] == "info"
    assert described["address_file"] == ""
    assert described["database_url"] == described["blobs_url"] == "**********"
    assert "pssst" not in str(described) + repr(settings)


def test_settings_cannot_be_changed_after_start() -> None:
    settings = load_settings(ServerSettings)
    with pytest.raises(ValueError, match="frozen"):
        settings.log_level = "debug"
