"""Settings of the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from hfmds.service.process.address import is_loopback, split_address
from hfmds.service.process.settings import ListenAddress, PeerAddresses, ServerSettings


class CoordinatorSettings(ServerSettings):
    """Run the coordinator: it leads runs, hands out tasks and averages the updates."""

    listen: ListenAddress = Field(
        "127.0.0.1:7401", description="host:port to serve gRPC on; port 0 takes a free one."
    )
    metrics_listen: ListenAddress = Field(
        "127.0.0.1:7402",
        description="host:port for /metrics, /healthz and /readyz, as plain HTTP without access "
        "control; port 0 takes a free one.",
    )
    web_listen: ListenAddress | None = Field(
        None,
        description="host:port to serve the web page on. With TLS it is HTTPS, for admins; "
        "unset: no page.",
    )
    token_listen: ListenAddress | None = Field(
        None,
        description="host:port for devices and admins with a token but no certificate; "
        "unset: tokens are not accepted.",
    )
    issuer_certificate: Path | None = Field(
        None,
        description="PEM file of the device issuer's certificate. The coordinator signs the "
        "certificates of enrolling devices with it; unset: it issues none.",
    )
    issuer_key: Path | None = Field(None, description="PEM file of the device issuer's key.")
    certificate_seconds: float = Field(
        24 * 3600.0, gt=0, description="Seconds for which a device's certificate is valid."
    )
    data_dir: Path = Field(
        Path("hfmds-data/coordinator"),
        description="Folder of the embedded database, of stored content and of uploads.",
    )
    store: PeerAddresses = Field(
        "127.0.0.1:7411",
        description="host:port of the synthesis store, or several with IP addresses, separated by "
        "commas.",
    )
    held_out: str | None = Field(
        None,
        description="Images to evaluate models on: a folder with one folder per class, an .npz "
        "file, or digits[:SIZE][#train|#test]; unset: no evaluation.",
    )
    plans_dir: Path | None = Field(
        None,
        description="Folder of plans that the coordinators of this machine share; unset: each "
        "makes its own.",
    )
    plans_max_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1024 * 1024,
        description="Bytes of kept plans; beyond, the least recently used go. A plan that is "
        "needed again is made again.",
    )
    device_away_seconds: float = Field(
        90.0, gt=0, description="Seconds of silence after which a device counts as away."
    )
    retry_seconds: float = Field(
        5.0, gt=0, description="Seconds after which a rejected device may retry, at the earliest."
    )
    check_ins_per_second: float = Field(
        100.0,
        gt=0,
        le=1e6,
        description="Maximum rate at which rejected devices are told to retry, per second.",
    )
    max_waiting_devices: int = Field(
        1000,
        ge=0,
        description="Most devices that wait for work in an open call; others are told to retry.",
    )
    leader_lease_seconds: float = Field(
        6.0,
        ge=1,
        description="Of several coordinators on one PostgreSQL, one leads. Another takes over "
        "after so many seconds of silence. Below 3, loading torch may cause that.",
    )
    threads: int = Field(
        1,
        ge=1,
        description="Processor threads that evaluate models and train the server's networks.",
    )

    @property
    def calls(self) -> Mapping[str, str]:
        """The addresses that the coordinator calls: the store."""
        return {"HFMDS_STORE": self.store}

    @model_validator(mode="after")
    def _require_tls_for_tokens(self) -> Self:
        if (self.issuer_certificate is None) != (self.issuer_key is None):
            raise ValueError(
                "HFMDS_ISSUER_CERTIFICATE and HFMDS_ISSUER_KEY belong together: set both, or none"
            )
        if (self.token_listen or self.issuer_key) and not self.tls:
            raise ValueError(
                "the coordinator issues tokens and certificates over TLS only: set "
                "HFMDS_TLS_CERTIFICATE, HFMDS_TLS_KEY and HFMDS_TLS_AUTHORITY, or unset "
                "HFMDS_TOKEN_LISTEN and HFMDS_ISSUER_CERTIFICATE"
            )
        return self

    @model_validator(mode="after")
    def _require_tls_for_the_page(self) -> Self:
        host = split_address(self.web_listen)[0] if self.web_listen else "localhost"
        if not (self.tls or self.insecure or is_loopback(host)):
            raise ValueError(
                f"HFMDS_WEB_LISTEN is {self.web_listen}, which other machines can reach, and there "
                f"is no TLS: set HFMDS_TLS_CERTIFICATE, HFMDS_TLS_KEY and HFMDS_TLS_AUTHORITY, or "
                f"HFMDS_INSECURE=true if you trust the network"
            )
        return self
