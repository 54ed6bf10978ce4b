"""Settings of a process, from command-line flags and `HFMDS_` variables.

A flag wins over a variable, and a variable over the default. Each program subclasses
`ServiceSettings` or `ServerSettings`. A field's description feeds `--help` and the documentation.
Nothing else in the project reads the environment.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import unquote, urlsplit

import typer
from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from hfmds.domain.validation import fault_rule
from hfmds.errors import ConfigurationError, InvalidInput
from hfmds.service.limits.limits import Limits
from hfmds.service.process.address import is_loopback, split_address, split_addresses
from hfmds.service.process.options import flag_of, option, with_options
from hfmds.service.security.tls import TlsFiles

PREFIX = "HFMDS_"

_LIMITS = Limits()

# Variables that Kubernetes injects for a Service whose name starts with "hfmds-".
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
"""Addresses to call: `host:port` with a real port, or several, separated by commas."""


def missing_tls(setting: str, addresses: str) -> str:
    """Return why these addresses need TLS; an empty text if they are on this machine."""
    if all(is_loopback(host) for host, _ in split_addresses(addresses)):
        return ""
    return (
        f"{setting} is {addresses}, another machine, and there is no TLS: set "
        f"HFMDS_TLS_CERTIFICATE, HFMDS_TLS_KEY and HFMDS_TLS_AUTHORITY (hfmds pki makes them), "
        f"use a token, or set HFMDS_INSECURE=true if you trust the network"
    )


class ServiceSettings(BaseSettings):
    """Settings of every process."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
    )

    metrics_listen: ListenAddress = Field(
        "127.0.0.1:0",
        description="host:port for /metrics, /healthz and /readyz, as plain HTTP without access "
        "control; port 0 takes a free one.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe level that is logged."
    )
    log_format: Literal["json", "console"] = Field(
        "console", description="json: one object per line, for machines; console: for people."
    )
    address_file: Path | None = Field(
        None,
        description="File in which a ready process writes its addresses and pid, as JSON.",
    )
    otlp_endpoint: Annotated[str | None, AfterValidator(_endpoint)] = Field(
        None,
        description="http:// or https:// address of the OpenTelemetry collector (OTLP over gRPC) "
        "for traces of rounds and tasks; unset: no traces.",
    )
    tls_certificate: Path | None = Field(
        None,
        description="PEM file of this process's certificate. With tls_key and tls_authority, calls "
        "are encrypted and both sides prove who they are; unset: no TLS.",
    )
    tls_key: Path | None = Field(None, description="PEM file of the certificate's key.")
    tls_authority: Path | None = Field(
        None, description="PEM file of the authority whose certificates this process trusts."
    )
    insecure: bool = Field(
        False,
        description="Serve and call other machines without TLS. Anyone on the network can then "
        "read and do everything.",
    )

    @model_validator(mode="after")
    def _require_all_tls_files(self) -> Self:
        files = [self.tls_certificate, self.tls_key, self.tls_authority]
        if any(files) and not all(files) and not self.enrols:
            raise ValueError(
                "HFMDS_TLS_CERTIFICATE, HFMDS_TLS_KEY and HFMDS_TLS_AUTHORITY belong together: "
                "set all three, or none"
            )
        return self

    @model_validator(mode="after")
    def _require_tls_for_calls(self) -> Self:
        secured = self.tls or self.insecure
        faults = [] if secured else [missing_tls(*call) for call in self.calls.items()]
        if any(faults):
            raise ValueError("\n".join(filter(None, faults)))
        return self

    @property
    def calls(self) -> Mapping[str, str]:
        """The addresses that this process calls, by the settings that name them."""
        return {}

    @property
    def enrols(self) -> bool:
        """Whether this process requests its certificate itself."""
        return False

    @property
    def tls(self) -> TlsFiles | None:
        """The TLS files, or None without TLS."""
        if self.tls_certificate and self.tls_key and self.tls_authority:
            return TlsFiles(self.tls_certificate, self.tls_key, self.tls_authority)
        return None


class ServerSettings(ServiceSettings):
    """Settings of every process that serves gRPC and keeps state."""

    listen: ListenAddress = Field(
        "127.0.0.1:0", description="host:port to serve gRPC on; port 0 takes a free one."
    )
    data_dir: Path = Field(
        Path("data"), description="Folder of the embedded database and of stored content."
    )
    database_url: SecretStr | None = Field(
        None,
        description="sqlite:///file or postgresql+psycopg://user:password@host/name; "
        "unset: SQLite in the data folder.",
    )
    blobs_url: SecretStr | None = Field(  # it may hold a key
        None,
        description="file:///folder or s3://bucket/prefix for stored content. The AWS_ variables "
        "give the keys and endpoint of S3; unset: inside the data folder.",
    )
    blobs_cache_max_bytes: int = Field(
        4 * 1024**3,
        ge=0,
        description="Bytes of local copies of S3 content; beyond, the least recently used go.",
    )
    shutdown_grace_seconds: float = Field(
        10.0, ge=0, description="Seconds that calls in progress may still take after SIGTERM."
    )
    storage_patience_seconds: float = Field(
        20.0,
        gt=0,
        description="Seconds without an answer of the database or the content store after which "
        "this process reports that it is not ready.",
    )
    max_blob_bytes: int = Field(
        256 * 1024 * 1024, ge=1, description="Largest content accepted from a peer, in bytes."
    )
    upload_ttl_seconds: float = Field(
        24 * 3600.0, gt=0, description="Seconds for which a broken upload can be resumed."
    )
    max_concurrent_rpcs: int = Field(
        _LIMITS.calls,
        ge=1,
        description="Most calls in progress, waiting ones included; others must retry.",
    )
    max_connections: int = Field(
        _LIMITS.connections, ge=1, description="Most connections at once; others are closed."
    )
    max_calls_per_second: float = Field(
        _LIMITS.calls_per_second,
        gt=0,
        description="Most calls per second of all callers; others must retry.",
    )
    max_device_calls_per_second: float = Field(
        _LIMITS.device_calls_per_second, gt=0, description="Most calls per second of one device."
    )
    max_device_calls: int = Field(
        _LIMITS.device_calls, ge=1, description="Most calls in progress of one device."
    )

    @model_validator(mode="after")
    def _require_tls_to_serve_others(self) -> Self:
        host = split_address(self.listen)[0]
        if not (self.tls or self.insecure or is_loopback(host)):
            raise ValueError(
                f"HFMDS_LISTEN is {self.listen}, which other machines can reach, and there is no "
                f"TLS: set HFMDS_TLS_CERTIFICATE, HFMDS_TLS_KEY and HFMDS_TLS_AUTHORITY (hfmds pki "
                f"makes them), or HFMDS_INSECURE=true if you trust the network"
            )
        return self

    @property
    def limits(self) -> Limits:
        """The limits of the port for devices."""
        return Limits(
            connections=self.max_connections,
            calls=self.max_concurrent_rpcs,
            calls_per_second=self.max_calls_per_second,
            device_calls=self.max_device_calls,
            device_calls_per_second=self.max_device_calls_per_second,
        )

    @property
    def resolved_database_url(self) -> str:
        """The URL of the database. It holds the password: never show it."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.data_dir.absolute() / 'state.sqlite3'}"

    @property
    def resolved_blobs_url(self) -> str:
        """The URL of the content store. It may hold a key: never show it."""
        if self.blobs_url is not None:
            return self.blobs_url.get_secret_value()
        return (self.data_dir.absolute() / "blobs").as_uri()

    @property
    def disk_places(self) -> dict[str, Path]:
        """The folders that this process writes to."""
        places = {"data": self.data_dir}
        content = urlsplit(self.resolved_blobs_url)
        if content.scheme == "file":
            places["content"] = Path(unquote(content.path))
        return places


S = TypeVar("S", bound=ServiceSettings)


def load_settings(cls: type[S], argv: Sequence[str] = (), *, program: str | None = None) -> S:
    """Return the settings from the flags in `argv` and from the environment.

    ConfigurationError lists all wrong values. An unknown flag or `--help` raises SystemExit, after
    the message or the help is printed.
    """
    flags = _given_flags(cls, argv, program) if argv else {}
    try:
        return cls(**flags)
    except ValidationError as error:
        # `from None`: the cause would print secrets that the message hides.
        faults = [_fault(cls, detail) for detail in error.errors()]
        raise ConfigurationError("\n".join(faults)) from None


def unknown_environment(cls: type[ServiceSettings], environ: Mapping[str, str]) -> dict[str, str]:
    """Return `HFMDS_` variables that no setting has, each with the nearest that exists, or "".

    They deserve a warning, not a refusal: services may share an environment.
    """
    known = {_variable(name) for name in cls.model_fields}
    unknown = sorted(
        name
        for name, value in environ.items()
        if name.startswith(PREFIX)
        and name not in known
        and not _KUBERNETES_NAME.search(name)
        and not _KUBERNETES_VALUE.match(value)
    )
    return {
        name: next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.75)), "")
        for name in unknown
    }


def describe(settings: ServiceSettings) -> dict[str, str]:
    """Return every setting as text for the log, with secrets hidden."""
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    return {name: "" if value is None else str(value) for name, value in values.items()}


def _given_flags(
    cls: type[ServiceSettings], argv: Sequence[str], program: str | None
) -> dict[str, Any]:
    """Return the flags in `argv` by the names of their settings."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    parsed: dict[str, Any] = {}

    @app.command(help=inspect.getdoc(cls))
    @with_options([option(n, f, variable=_variable(n)) for n, f in cls.model_fields.items()])
    def keep(**flags: Any) -> None:
        parsed.update(flags)

    try:
        app(list(argv), prog_name=program)
    except SystemExit:  # typer ends every command this way
        if not parsed:
            raise
    return {name: value for name, value in parsed.items() if value is not None}


def _variable(field_name: str) -> str:
    return PREFIX + field_name.upper()


def _fault(cls: type[ServiceSettings], detail: ErrorDetails) -> str:
    """Return one line for the operator: the setting, its value, and the values it may have."""
    if not detail["loc"]:  # a rule over several settings names them itself
        return str(detail["ctx"]["error"])
    name = str(detail["loc"][0])
    field = cls.model_fields[name]
    setting = f"{_variable(name)} ({flag_of(name)})"
    if detail["type"] == "missing":
        return f"{setting} is not set. {field.description}"
    secret = "Secret" in str(field.annotation)
    value = "a hidden value" if secret else repr(detail["input"])
    return f"{setting} is {value}; it must be {fault_rule(field, detail)}"
