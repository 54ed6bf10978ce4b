"""Settings of a process: typed, from `HFMDS_` variables and command-line flags, told when wrong.

A flag wins over a variable, a variable over the default. Each service subclasses
`ServiceSettings` or `ServerSettings`; a field's description feeds `--help` and the README's table.
Nothing else in the project reads the environment.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from hfmds.errors import ConfigurationError, InvalidInput
from hfmds.service.limits.limits import Limits
from hfmds.service.process.address import is_loopback, split_address, split_addresses
from hfmds.service.security.tls import TlsFiles

PREFIX = "HFMDS_"

_LIMITS = Limits()

# What Kubernetes injects for a Service whose name starts with "hfmds-": not ours, not a typo.
_KUBERNETES_NAME = re.compile(r"_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP)")
_KUBERNETES_VALUE = re.compile(r"(tcp|udp)://")


def _listen_address(value: str) -> str:
    try:
        split_address(value)
    except InvalidInput as error:
        raise ValueError(str(error)) from None  # the form pydantic collects
    return value


def _peer_addresses(value: str) -> str:
    try:
        places = split_addresses(value)
    except InvalidInput as error:
        raise ValueError(str(error)) from None
    if any(port == 0 for _, port in places):
        raise ValueError("host:port with a port from 1 to 65535")
    return value


def _endpoint(value: str | None) -> str | None:
    parts = urlsplit(value or "http://host")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("http://host:port or https://host:port")
    return value


ListenAddress = Annotated[str, AfterValidator(_listen_address)]
"""Where to listen: `host:port`; port 0 lets the system choose."""

PeerAddresses = Annotated[str, AfterValidator(_peer_addresses)]
"""Whom to call: `host:port` with a real port, or several of them, with commas between."""


def missing_tls(setting: str, addresses: str) -> str:
    """What is wrong with calling these without TLS; empty: nothing, it is this machine."""
    if all(is_loopback(host) for host, _ in split_addresses(addresses)):
        return ""
    return (
        f"{setting} is {addresses}, another machine, and there is no TLS: set "
        f"HFMDS_TLS_CERTIFICATE, HFMDS_TLS_KEY and HFMDS_TLS_AUTHORITY (hfmds pki makes them), "
        f"come with a token, or set HFMDS_INSECURE=true where the network is trusted"
    )


class ServiceSettings(BaseSettings):
    """What every process of the project can be told."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_exit_on_error=False,
        extra="forbid",
        frozen=True,
    )

    metrics_listen: ListenAddress = Field(
        "127.0.0.1:0",
        description="host:port for /metrics, /healthz and /readyz, in plain HTTP for whoever "
        "reaches it; port 0 takes a free one",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe level that is logged"
    )
    log_format: Literal["json", "console"] = Field(
        "console", description="json: one object per line, for machines; console: for people"
    )
    address_file: Path | None = Field(
        None,
        description="file that tells a supervisor the bound addresses and the pid, as JSON, "
        "while the process is ready",
    )
    otlp_endpoint: Annotated[str | None, AfterValidator(_endpoint)] = Field(
        None,
        description="http:// or https:// address of the OpenTelemetry collector (OTLP over gRPC) "
        "that traces of rounds and tasks are sent to; unset: nothing is traced",
    )
    tls_certificate: Path | None = Field(
        None,
        description="PEM file of the certificate this process shows; with the two others, all "
        "calls are encrypted and both sides are known; unset: no TLS",
    )
    tls_key: Path | None = Field(None, description="PEM file of that certificate's key")
    tls_authority: Path | None = Field(
        None, description="PEM file of the authority whose certificates are believed"
    )
    insecure: bool = Field(
        False,
        description="serve and call other machines without TLS: whoever is on the network can read "
        "and do everything",
    )

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        given = [self.tls_certificate, self.tls_key, self.tls_authority]
        if any(given) and not all(given) and not self.enrols:
            raise ValueError(
                "HFMDS_TLS_CERTIFICATE, HFMDS_TLS_KEY and HFMDS_TLS_AUTHORITY belong together; "
                "set all three, or none"
            )
        return self

    @model_validator(mode="after")
    def _calls_to_others_need_tls(self) -> Self:
        secured = self.tls or self.insecure
        faults = [] if secured else [missing_tls(*each) for each in self.calls.items()]
        if any(faults):
            raise ValueError("\n".join(filter(None, faults)))
        return self

    @property
    def calls(self) -> Mapping[str, str]:
        """Whom this process calls: addresses by the settings that name them."""
        return {}

    @property
    def enrols(self) -> bool:
        """Whether this process asks for its certificate by itself."""
        return False

    @property
    def tls(self) -> TlsFiles | None:
        """The TLS files, if there are some."""
        if self.tls_certificate and self.tls_key and self.tls_authority:
            return TlsFiles(self.tls_certificate, self.tls_key, self.tls_authority)
        return None


class ServerSettings(ServiceSettings):
    """What every process that serves gRPC and keeps state can be told."""

    listen: ListenAddress = Field(
        "127.0.0.1:0", description="host:port to serve gRPC on; port 0 takes a free one"
    )
    data_dir: Path = Field(
        Path("data"), description="folder of the embedded database and of stored content"
    )
    database_url: SecretStr | None = Field(
        None,
        description="sqlite:///file or postgresql+psycopg://user:password@host/name; "
        "unset: SQLite in the data folder",
    )
    blobs_url: SecretStr | None = Field(  # somebody will put a key into it
        None,
        description="file:///folder or s3://bucket/prefix for stored content; S3's keys and "
        "endpoint are in the usual AWS_ variables; unset: inside the data folder",
    )
    blobs_cache_max_bytes: int = Field(
        4 * 1024**3,
        ge=0,
        description="size above which the least recently used local copies of S3 content leave",
    )
    shutdown_grace_seconds: float = Field(
        10.0, ge=0, description="how long all that is in flight may still take after SIGTERM"
    )
    storage_patience_seconds: float = Field(
        20.0,
        gt=0,
        description="how long the database or the content may be silent before this process says "
        "that it is not ready",
    )
    max_blob_bytes: int = Field(
        256 * 1024 * 1024, ge=1, description="largest piece of content accepted from a peer"
    )
    upload_ttl_seconds: float = Field(
        24 * 3600.0, gt=0, description="how long the bytes of a broken upload wait to be resumed"
    )
    max_concurrent_rpcs: int = Field(
        _LIMITS.calls,
        ge=1,
        description="most calls in flight, waiting ones too; more are told to try again",
    )
    max_connections: int = Field(
        _LIMITS.connections, ge=1, description="most connections at once; more are closed"
    )
    max_calls_per_second: float = Field(
        _LIMITS.calls_per_second,
        gt=0,
        description="most calls per second of all callers; more are told to try again",
    )
    max_address_calls_per_second: float = Field(
        _LIMITS.address_calls_per_second,
        gt=0,
        description="most calls per second from one network address, which many devices may share",
    )
    max_device_calls_per_second: float = Field(
        _LIMITS.device_calls_per_second, gt=0, description="most calls per second of one device"
    )
    max_device_calls: int = Field(
        _LIMITS.device_calls, ge=1, description="most calls in flight of one device"
    )

    @model_validator(mode="after")
    def _others_need_tls(self) -> Self:
        host = split_address(self.listen)[0]
        if not (self.tls or self.insecure or is_loopback(host)):
            raise ValueError(
                f"HFMDS_LISTEN is {self.listen}, which other machines can reach, and there is no "
                f"TLS: set HFMDS_TLS_CERTIFICATE, HFMDS_TLS_KEY and HFMDS_TLS_AUTHORITY (hfmds pki "
                f"makes them), or HFMDS_INSECURE=true where the network is trusted"
            )
        return self

    @property
    def limits(self) -> Limits:
        """What the port for devices bears."""
        return Limits(
            connections=self.max_connections,
            calls=self.max_concurrent_rpcs,
            calls_per_second=self.max_calls_per_second,
            address_calls_per_second=self.max_address_calls_per_second,
            device_calls=self.max_device_calls,
            device_calls_per_second=self.max_device_calls_per_second,
        )

    @property
    def resolved_database_url(self) -> str:
        """The database to open; holds the password."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.data_dir.absolute() / 'state.sqlite3'}"

    @property
    def resolved_blobs_url(self) -> str:
        """The blob store to open; nothing to show either."""
        if self.blobs_url is not None:
            return self.blobs_url.get_secret_value()
        return (self.data_dir.absolute() / "blobs").as_uri()

    @property
    def disk_places(self) -> dict[str, Path]:
        """The folders this process writes to; that of content, unless it is in a bucket."""
        places = {"data": self.data_dir}
        content = urlsplit(self.resolved_blobs_url)
        if content.scheme == "file":
            places["content"] = Path(unquote(content.path))
        return places


S = TypeVar("S", bound=ServiceSettings)


def load_settings(cls: type[S], argv: Sequence[str] = (), *, program: str | None = None) -> S:
    """Settings from the flags in `argv` and the environment; ConfigurationError lists all faults.

    `--help` in `argv` prints the settings and raises SystemExit.
    """
    _refuse_unknown_flags(cls, argv)
    try:
        return cls(_cli_parse_args=list(argv), _cli_prog_name=program)  # type: ignore[call-arg]
    except SettingsError as error:
        raise ConfigurationError(str(error).removeprefix("error parsing CLI: ")) from None
    except ValidationError as error:
        # `from None`: the cause would print secrets that the message hides.
        faults = [_fault(cls, detail) for detail in error.errors()]
        raise ConfigurationError("\n".join(faults)) from None


def unknown_environment(cls: type[ServiceSettings], environ: Mapping[str, str]) -> dict[str, str]:
    """`HFMDS_` variables that no setting has, each with the nearest that exists, or "".

    Worth a warning, not a refusal: another service's settings may share the environment.
    """
    known = {_variable(field) for field in cls.model_fields}
    unknown = {
        name: value
        for name, value in environ.items()
        if name.startswith(PREFIX)
        and name not in known
        and not _KUBERNETES_NAME.search(name)
        and not _KUBERNETES_VALUE.match(value)
    }
    return {name: _nearest(name, known) for name in sorted(unknown)}


def describe(settings: ServiceSettings) -> dict[str, str]:
    """Every setting as text that is safe to log."""
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    return {name: "" if value is None else str(value) for name, value in values.items()}


def settings_table(cls: type[ServiceSettings]) -> list[str]:
    """The settings as rows of a Markdown table: variable, flag, default, meaning."""
    rows = []
    for name, field in cls.model_fields.items():
        meaning = _meaning(field).replace("|", r"\|")
        rows.append(f"| `{_variable(name)}` | `{_flag(name)}` | {_default(field)} | {meaning} |")
    return rows


def _variable(field_name: str) -> str:
    return PREFIX + field_name.upper()


def _flag(field_name: str) -> str:
    return "--" + field_name.replace("_", "-")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if value in (None, "") else f"`{value}`"


def _meaning(field: FieldInfo) -> str:
    return field.description or ""


def _nearest(name: str, known: set[str]) -> str:
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)), "")


def _refuse_unknown_flags(cls: type[ServiceSettings], argv: Sequence[str]) -> None:
    """Argparse would also echo the values, secrets too, and take abbreviations."""
    known = {"--help"}
    for name, field in cls.model_fields.items():
        known.add(_flag(name))
        if field.annotation in (bool, bool | None):
            known.add("--no-" + _flag(name).removeprefix("--"))
    for argument in argv:
        flag = argument.partition("=")[0]
        if flag.startswith("--") and flag not in known:
            hint = _nearest(flag, known)
            remedy = f"did you mean {hint}?" if hint else "--help lists all"
            raise ConfigurationError(f"there is no flag {flag}; {remedy}")


def _fault(cls: type[ServiceSettings], detail: ErrorDetails) -> str:
    """One line for the operator: which setting, what it is, what it may be."""
    rule = _rule(detail)
    if not detail["loc"]:  # a rule over several settings names them itself
        return rule
    name = str(detail["loc"][0])
    field = cls.model_fields[name]
    if detail["type"] == "missing":
        return f"{_variable(name)} ({_flag(name)}) is not set; it is the {_meaning(field)}"
    value = "a hidden value" if _is_secret(field.annotation) else repr(detail["input"])
    return f"{_variable(name)} ({_flag(name)}) is {value}; it must be {rule}"


def _rule(detail: ErrorDetails) -> str:
    """Pydantic's message in our words: what the value must be."""
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    return re.sub(r"^Input should be |, unable to parse.*$", "", detail["msg"])


def _is_secret(annotation: Any) -> bool:
    return "Secret" in str(annotation)
