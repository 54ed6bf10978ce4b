"""Settings of the edge client."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from edge_client.device.conditions import CONDITIONS
from hfmds.domain.devices import labels_from, require_id
from hfmds.domain.methods import METHODS
from hfmds.errors import ConfigurationError, InvalidInput
from hfmds.service.client.peer import Peer
from hfmds.service.process.settings import ListenAddress, PeerAddresses, ServiceSettings
from hfmds.service.security.tls import TlsFiles, Trust

MIB = 1024 * 1024


def _id_or_empty(value: str) -> str:
    try:
        return require_id(value, "it") if value else value
    except InvalidInput:
        raise ValueError(
            "1 to 128 of A-Z a-z 0-9 . _ - beginning with a letter or digit, or empty"
        ) from None  # the form pydantic collects


def _split(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _labels(value: str) -> str:
    try:
        labels_from(_split(value), "it")
    except InvalidInput as error:
        raise ValueError(f"NAME=VALUE, separated by commas: {error}") from None
    return value


def _conditions(value: str) -> str:
    if set(_split(value)) - set(CONDITIONS):
        raise ValueError(f"some of {', '.join(CONDITIONS)}, separated by commas, or empty")
    return value


def _command(value: str) -> str:
    try:
        shlex.split(value)
    except ValueError as error:
        raise ValueError(f"a command line as a shell reads it ({error})") from None
    return value


class EdgeSettings(ServiceSettings):
    """Run one device: it trains on its own images and shares updates and synthetic images."""

    coordinator: PeerAddresses = Field(
        "127.0.0.1:7401",
        description="host:port of the coordinator, or several with IP addresses, separated by "
        "commas.",
    )
    store: PeerAddresses = Field(
        "127.0.0.1:7411",
        description="host:port of the synthesis store, or several with IP addresses, separated by "
        "commas.",
    )
    enrol: PeerAddresses | None = Field(
        None,
        description="host:port of the coordinator's token port, where this device gets its "
        "certificate. HFMDS_TLS_AUTHORITY names the trusted authority; unset: no enrolment.",
    )
    enrol_token: SecretStr | None = Field(
        None, description="Token with which this device enrols; needed once."
    )
    enrol_token_file: Path | None = Field(None, description="File that holds the token.")
    metrics_listen: ListenAddress = Field(
        "127.0.0.1:7421",
        description="host:port for /metrics, /healthz and /readyz, as plain HTTP without access "
        "control; port 0 takes a free one.",
    )
    device_id: Annotated[str, AfterValidator(_id_or_empty)] = Field(
        "",
        description="Name of this device in the fleet; empty: the device makes one and keeps it.",
    )
    data: str = Field(
        description="The device's own images: a folder with one folder per class, an .npz, .npy or "
        ".csv file, or digits[:SIZE][#train|#test]."
    )
    held_out: str | None = Field(
        None,
        description="Images on which this device evaluates models and never trains; unset: it "
        "evaluates on its data.",
    )
    class_names: str = Field(
        "",
        description="Names of the classes in label order, separated by commas; empty: the names of "
        "the folders, or numbers.",
    )
    state_dir: Path = Field(
        Path("hfmds-data/device"),
        description="Folder in which this device keeps its id, its memory and cached content.",
    )
    run: Annotated[str, AfterValidator(_id_or_empty)] = Field(
        "", description="Run to work for until it ends; empty: every run, without end."
    )
    labels: Annotated[str, AfterValidator(_labels)] = Field(
        "",
        description="Labels by which runs choose devices: NAME=VALUE, separated by commas.",
    )
    charging: bool | None = Field(
        None, description="Whether this device is on mains power; unset: Linux decides."
    )
    unmetered: bool | None = Field(
        None,
        description="Whether its network is free of charge by the byte; unset: not reported.",
    )
    engine: Literal["onnx", "torch"] = Field(
        "onnx",
        description="Engine that trains. torch knows all methods. onnx needs no torch and knows "
        f"{', '.join(name for name in METHODS if not METHODS[name].needs_torch)}.",
    )
    compute_device: Literal["cpu", "cuda", "mps", "auto"] = Field(
        "cpu",
        description="Where the engine computes. mps: Apple's GPU, with torch; auto: a GPU if there "
        "is one.",
    )
    mixed_precision: bool = Field(
        False,
        description="Let the torch engine train with bfloat16 where it can: faster on GPUs, less "
        "exact.",
    )
    threads: int = Field(1, ge=1, le=1024, description="Processor threads of the engine.")
    nice: int = Field(0, ge=0, le=19, description="How far other programs go first; 19: always.")
    max_memory_bytes: int | None = Field(
        None,
        ge=64 * MIB,
        description="Memory this process may use, in bytes. The device gives up a task that needs "
        "more; unset: no limit.",
    )
    traffic_bytes_per_day: int | None = Field(
        None,
        ge=MIB,
        description="Bytes that this device sends and receives in a day. Then it rests until the "
        "next day; unset: no limit.",
    )
    only_when: Annotated[str, AfterValidator(_conditions)] = Field(
        "",
        description="Conditions for work: idle, charging, unmetered, separated by commas; empty: "
        "the device always works.",
    )
    condition_command: Annotated[str, AfterValidator(_command)] = Field(
        "",
        description="Command that checks a condition. It gets idle, charging or unmetered, and "
        "exits with 0 if that holds, else 1; empty: Linux and the settings decide.",
    )
    report_cost: bool = Field(
        True,
        description="Report with each result its cost (steps, processor time, memory) and the "
        "similarity of its images, for metrics that name no device.",
    )
    once: bool = Field(False, description="Do the work that is there now, then stop.")
    wait_seconds: float = Field(
        30.0, ge=0, le=60, description="Seconds that one call waits for work."
    )
    retry_max_seconds: float = Field(
        30.0, gt=0, description="Longest pause between two calls to an absent service, in seconds."
    )
    cache_max_bytes: int = Field(
        512 * MIB,
        ge=MIB,
        description="Bytes of cached content; beyond, the least recently used goes.",
    )
    pool_max_bytes: int = Field(
        0,
        ge=0,
        description="Most bytes of synthetic images to fetch and train on. Of a larger snapshot "
        "the device gets a class-balanced share; 0: no limit.",
    )

    @model_validator(mode="after")
    def _require_a_complete_enrolment(self) -> Self:
        tokens = [self.enrol_token, self.enrol_token_file]
        if self.enrol is None and any(tokens):
            raise ValueError("a token is given, but no coordinator to enrol with: set HFMDS_ENROL")
        if self.enrol and (not self.tls_authority or self.tls_certificate or self.tls_key):
            raise ValueError(
                "with HFMDS_ENROL the device gets its certificate and makes its own key: set "
                "HFMDS_TLS_AUTHORITY, and neither HFMDS_TLS_CERTIFICATE nor HFMDS_TLS_KEY"
            )
        if all(tokens):
            raise ValueError("set HFMDS_ENROL_TOKEN or HFMDS_ENROL_TOKEN_FILE, not both")
        return self

    @property
    def calls(self) -> Mapping[str, str]:
        """The addresses that the device calls: both services. Enrolment always uses TLS."""
        return {"HFMDS_COORDINATOR": self.coordinator, "HFMDS_STORE": self.store}

    @property
    def enrols(self) -> bool:
        """Whether this device gets its certificate from the coordinator."""
        return self.enrol is not None

    @property
    def tls(self) -> TlsFiles | None:
        """The TLS files, or where they will be once the device has enrolled; None without TLS."""
        return self.identity_files if self.enrols else super().tls

    @property
    def identity_files(self) -> TlsFiles:
        """The TLS files of a device that enrols."""
        own = self.state_dir / "identity"
        return TlsFiles(own / "certificate.pem", own / "key.pem", own / "authority.pem")

    @property
    def token(self) -> str:
        """The token of this device, or an empty text. ConfigurationError if it cannot be read."""
        if self.enrol_token:
            return self.enrol_token.get_secret_value().strip()
        if self.enrol_token_file is None:
            return ""
        try:
            return self.enrol_token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"cannot read the token in {self.enrol_token_file}: {error}; set "
                f"HFMDS_ENROL_TOKEN_FILE"
            ) from None

    @property
    def own_class_names(self) -> tuple[str, ...]:
        """The parts of `class_names`."""
        return _split(self.class_names)

    @property
    def required_conditions(self) -> tuple[str, ...]:
        """The parts of `only_when`."""
        return _split(self.only_when)

    @property
    def condition_arguments(self) -> tuple[str, ...]:
        """The arguments of `condition_command`."""
        return tuple(shlex.split(self.condition_command))

    @property
    def own_labels(self) -> tuple[str, ...]:
        """The parts of `labels`."""
        return labels_from(_split(self.labels), "HFMDS_LABELS")

    @property
    def coordinator_peer(self) -> Peer:
        """The coordinator as a peer."""
        return Peer("coordinator", self.coordinator, "HFMDS_COORDINATOR", self.tls)

    @property
    def enrolment_trust(self) -> Trust:
        """The authority that a device trusts when it enrols."""
        if self.tls_authority is None:
            raise RuntimeError("this device does not enrol")
        return Trust(self.tls_authority)

    @property
    def enrolment_peer(self) -> Peer:
        """The token port of the coordinator as a peer."""
        if self.enrol is None:
            raise RuntimeError("this device does not enrol")
        name = "coordinator's token port"
        return Peer(name, self.enrol, "HFMDS_ENROL", self.enrolment_trust)

    @property
    def store_peer(self) -> Peer:
        """The synthesis store as a peer."""
        return Peer("synthesis store", self.store, "HFMDS_STORE", self.tls)
