"""What the edge client can be told: `HFMDS_` variables and flags."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from edge_client.device.conditions import CONDITIONS
from hfmds.domain.devices import labels_from, require_id
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
    """Settings of one device."""

    coordinator: PeerAddresses = Field(
        "127.0.0.1:7401",
        description="host:port of the coordinator; of several, IP addresses separated by commas",
    )
    store: PeerAddresses = Field(
        "127.0.0.1:7411",
        description="host:port of the synthesis store; of several, IP addresses separated by "
        "commas",
    )
    enrol: PeerAddresses | None = Field(
        None,
        description="host:port of the coordinator's token port, where this device gets its "
        "certificate, and HFMDS_TLS_AUTHORITY says whom to believe; unset: it has one, or none",
    )
    enrol_token: SecretStr | None = Field(
        None, description="token that lets this device in; needed once"
    )
    enrol_token_file: Path | None = Field(None, description="file that has that token")
    metrics_listen: ListenAddress = Field(
        "127.0.0.1:7421",
        description="host:port for /metrics, /healthz and /readyz, in plain HTTP for whoever "
        "reaches it; port 0 takes a free one",
    )
    device_id: Annotated[str, AfterValidator(_id_or_empty)] = Field(
        "",
        description="this device's name in the fleet; empty: made once, kept in the state folder",
    )
    data: str = Field(
        description="device's own images: a folder with one folder per class, an .npz, .npy or "
        ".csv file, mnist:FOLDER and the like, or digits[:SIZE][#train|#test]"
    )
    held_out: str | None = Field(
        None,
        description="images this device evaluates models on, as those of data, and never trains "
        "on; unset: on its data",
    )
    class_names: str = Field(
        "",
        description="names of the data's classes in label order, separated by commas; "
        "empty: the folders' names, or numbers",
    )
    state_dir: Path = Field(
        Path("hfmds-data/device"),
        description="folder of what this device keeps: its id, its memory and cached content",
    )
    run: Annotated[str, AfterValidator(_id_or_empty)] = Field(
        "", description="the only run to work for, and then to stop; empty: any, for ever"
    )
    labels: Annotated[str, AfterValidator(_labels)] = Field(
        "",
        description="what runs may choose this device by: NAME=VALUE, separated by commas",
    )
    charging: bool | None = Field(
        None, description="whether this device is on mains power; unset: what Linux says of it"
    )
    unmetered: bool | None = Field(
        None,
        description="whether its network is not paid for by the byte; unset: it does not tell",
    )
    engine: Literal["onnx", "torch"] = Field(
        "onnx",
        description="what computes; onnx needs no torch, and knows fedavg, fedprox and hfmds; "
        "torch knows all methods",
    )
    compute_device: Literal["cpu", "cuda", "mps", "auto"] = Field(
        "cpu",
        description="where the engine computes; mps: on Apple's GPU, with torch; auto: on a GPU if "
        "there is one",
    )
    mixed_precision: bool = Field(
        False,
        description="let the torch engine train with bfloat16 where float32 is not needed: quicker "
        "on GPUs, less exact",
    )
    threads: int = Field(1, ge=1, le=1024, description="processor threads the engine may use")
    nice: int = Field(
        0, ge=0, le=19, description="how far this device lets other programs go first; 19: always"
    )
    max_memory_bytes: int | None = Field(
        None,
        ge=64 * MIB,
        description="memory this process may use; a task that needs more is given up with the "
        "reason; unset: what there is",
    )
    traffic_bytes_per_day: int | None = Field(
        None,
        ge=MIB,
        description="most content this device sends and receives in a day; then it rests until "
        "the next; unset: any",
    )
    only_when: Annotated[str, AfterValidator(_conditions)] = Field(
        "",
        description="what this device must be to work, of idle, charging and unmetered, separated "
        "by commas; empty: it always works",
    )
    condition_command: Annotated[str, AfterValidator(_command)] = Field(
        "",
        description="command that tells: called with idle, charging or unmetered, it ends with 0 "
        "if the device is, else 1; empty: Linux and the settings tell",
    )
    report_cost: bool = Field(
        True,
        description="tell the coordinator with each result what it cost (steps, processor time, "
        "memory) and how alike its images are, for metrics that name no device",
    )
    once: bool = Field(False, description="do the work there is now, then stop")
    wait_seconds: float = Field(
        30.0, ge=0, le=60, description="how long one call waits for work before it is made anew"
    )
    retry_max_seconds: float = Field(
        30.0, gt=0, description="longest pause between two calls to a service that is away"
    )
    cache_max_bytes: int = Field(
        512 * MIB,
        ge=MIB,
        description="size above which the least recently used content leaves the cache",
    )
    pool_max_bytes: int = Field(
        0,
        ge=0,
        description="most bytes of synthetic images to fetch and train on; of a larger snapshot "
        "it gets a share, even over classes; 0: no limit",
    )

    @model_validator(mode="after")
    def _enrolment_is_whole(self) -> Self:
        tokens = [self.enrol_token, self.enrol_token_file]
        if self.enrol is None and any(tokens):
            raise ValueError("a token is given, but not where to show it; set HFMDS_ENROL")
        if self.enrol and (not self.tls_authority or self.tls_certificate or self.tls_key):
            raise ValueError(
                "with HFMDS_ENROL the device gets its certificate and makes its key by itself; set "
                "HFMDS_TLS_AUTHORITY, and neither HFMDS_TLS_CERTIFICATE nor HFMDS_TLS_KEY"
            )
        if all(tokens):
            raise ValueError("set HFMDS_ENROL_TOKEN or HFMDS_ENROL_TOKEN_FILE, not both")
        return self

    @property
    def calls(self) -> Mapping[str, str]:
        """Both services; where it enrols there is TLS always."""
        return {"HFMDS_COORDINATOR": self.coordinator, "HFMDS_STORE": self.store}

    @property
    def enrols(self) -> bool:
        """Whether this device gets its certificate from the coordinator."""
        return self.enrol is not None

    @property
    def tls(self) -> TlsFiles | None:
        """The TLS files, if there are some, or will be once the device has enrolled."""
        return self.identity_files if self.enrols else super().tls

    @property
    def identity_files(self) -> TlsFiles:
        """Where a device that enrols keeps what makes it itself."""
        own = self.state_dir / "identity"
        return TlsFiles(own / "certificate.pem", own / "key.pem", own / "authority.pem")

    @property
    def token(self) -> str:
        """What lets this device in; empty: nothing. ConfigurationError if it cannot be read."""
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
        """`class_names`, taken apart."""
        return _split(self.class_names)

    @property
    def required_conditions(self) -> tuple[str, ...]:
        """`only_when`, taken apart."""
        return _split(self.only_when)

    @property
    def condition_arguments(self) -> tuple[str, ...]:
        """`condition_command`, taken apart."""
        return tuple(shlex.split(self.condition_command))

    @property
    def own_labels(self) -> tuple[str, ...]:
        """`labels`, taken apart."""
        return labels_from(_split(self.labels), "HFMDS_LABELS")

    @property
    def coordinator_peer(self) -> Peer:
        """The coordinator, as errors name it."""
        return Peer("coordinator", self.coordinator, "HFMDS_COORDINATOR", self.tls)

    @property
    def enrolment_trust(self) -> Trust:
        """Whom a device that enrols believes at first."""
        if self.tls_authority is None:
            raise RuntimeError("this device does not enrol")
        return Trust(self.tls_authority)

    @property
    def enrolment_peer(self) -> Peer:
        """The coordinator, where it takes tokens."""
        if self.enrol is None:
            raise RuntimeError("this device does not enrol")
        name = "coordinator's token port"
        return Peer(name, self.enrol, "HFMDS_ENROL", self.enrolment_trust)

    @property
    def store_peer(self) -> Peer:
        """The synthesis store, as errors name it."""
        return Peer("synthesis store", self.store, "HFMDS_STORE", self.tls)
